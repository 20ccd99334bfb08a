//! A gRPC client without message types: it sends and receives bytes, which tests encode and decode by field number.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::runtime::Runtime;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};

use bytes::{Buf, BufMut};

/// A message as bytes.
pub type Bytes = Vec<u8>;

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = BytesCodec;
    type Decoder = BytesCodec;

    fn encoder(&mut self) -> BytesCodec {
        BytesCodec
    }

    fn decoder(&mut self) -> BytesCodec {
        BytesCodec
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&message);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let mut message = vec![0; buffer.remaining()];
        buffer.copy_to_slice(&mut message);
        Ok(Some(message))
    }
}

/// A connection to a server without TLS.
pub struct GrpcClient {
    runtime: Runtime,
    channel: Channel,
}

/// A stream of messages.
pub struct Messages<'a> {
    client: &'a GrpcClient,
    stream: Streaming<Bytes>,
}

impl GrpcClient {
    /// # Panics
    /// If the connection fails.
    pub fn connect(address: SocketAddr) -> GrpcClient {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let channel = runtime.block_on(endpoint.connect()).expect("a server");
        GrpcClient { runtime, channel }
    }

    async fn ready(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(grpc.max_decoding_message_size(64 << 20))
    }

    /// # Errors
    /// The server's error status.
    pub fn unary(&self, path: &'static str, message: Bytes) -> Result<Bytes, Status> {
        self.runtime.block_on(async {
            let call =
                self.ready().await?.unary(Request::new(message), PathAndQuery::from_static(path), BytesCodec).await?;
            Ok(call.into_inner())
        })
    }

    /// # Errors
    /// The server's error status.
    pub fn stream(&self, path: &'static str, message: Bytes) -> Result<Messages<'_>, Status> {
        self.runtime.block_on(async {
            let mut grpc = self.ready().await?;
            let call =
                grpc.server_streaming(Request::new(message), PathAndQuery::from_static(path), BytesCodec).await?;
            Ok(Messages { client: self, stream: call.into_inner() })
        })
    }

    /// All messages of a stream that ends.
    ///
    /// # Errors
    /// The server's error status.
    pub fn all(&self, path: &'static str, message: Bytes) -> Result<Vec<Bytes>, Status> {
        let mut messages = self.stream(path, message)?;
        let mut all = Vec::new();
        while let Some(message) = messages.next(Duration::from_secs(60))? {
            all.push(message);
        }
        Ok(all)
    }
}

impl Messages<'_> {
    /// The next message; `None` at the end of the stream.
    ///
    /// # Errors
    /// If the server ends the stream with an error.
    ///
    /// # Panics
    /// If none arrives in time.
    pub fn next(&mut self, within: Duration) -> Result<Option<Bytes>, Status> {
        let stream = &mut self.stream;
        self.client
            .runtime
            .block_on(async { tokio::time::timeout(within, stream.message()).await.expect("a message in time") })
    }
}

/// Writes a message field by field.
#[derive(Debug, Clone, Default)]
pub struct Writer(Bytes);

impl Writer {
    pub fn number(mut self, field: u32, number: i64) -> Writer {
        self.varint(u64::from(field) << 3);
        self.varint(number.cast_unsigned());
        self
    }

    pub fn bytes(mut self, field: u32, bytes: &[u8]) -> Writer {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    /// Repeated numbers, as most encoders send them.
    pub fn packed(self, field: u32, numbers: &[i64]) -> Writer {
        let mut content = Writer::default();
        for number in numbers {
            content.varint(number.cast_unsigned());
        }
        self.bytes(field, &content.0)
    }

    pub fn double(mut self, field: u32, number: f64) -> Writer {
        self.varint(u64::from(field) << 3 | 1);
        self.0.extend(number.to_le_bytes());
        self
    }

    pub fn text(self, field: u32, text: &str) -> Writer {
        self.bytes(field, text.as_bytes())
    }

    pub fn message(self, field: u32, message: Writer) -> Writer {
        self.bytes(field, &message.0)
    }

    pub fn finish(self) -> Bytes {
        self.0
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}

/// One value of a repeated field.
#[derive(Debug, Clone)]
pub enum FieldValue {
    Number(i64),
    Text(String),
    Message(Writer),
}

/// Values of repeated fields by field number, such as those of a filter.
#[derive(Debug, Clone, Default)]
pub struct FieldValues(BTreeMap<u32, Vec<FieldValue>>);

impl FieldValues {
    pub fn add(&mut self, field: u32, value: FieldValue) {
        self.0.entry(field).or_default().push(value);
    }

    /// Encodes the fields in ascending order. `is_packed`: whether several numbers of a field are sent together.
    pub fn encode(&self, is_packed: bool) -> Writer {
        let mut writer = Writer::default();
        for (field, values) in &self.0 {
            let mut numbers = Vec::new();
            for value in values {
                writer = match value {
                    FieldValue::Number(number) if is_packed && values.len() > 1 => {
                        numbers.push(*number);
                        writer
                    }
                    FieldValue::Number(number) => writer.number(*field, *number),
                    FieldValue::Text(text) => writer.text(*field, text),
                    FieldValue::Message(message) => writer.message(*field, message.clone()),
                };
            }
            if !numbers.is_empty() {
                writer = writer.packed(*field, &numbers);
            }
        }
        writer
    }
}

/// The fields of a message. Absent fields are 0 or empty, as in the protocol.
#[derive(Debug, Clone, Default)]
pub struct Fields(BTreeMap<u32, Vec<Value>>);

#[derive(Debug, Clone)]
enum Value {
    Number(u64),
    Bytes(Bytes),
}

impl Fields {
    /// # Panics
    /// If the bytes are not a valid message.
    pub fn read(mut bytes: &[u8]) -> Fields {
        let mut fields = Fields::default();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let value = match tag & 7 {
                0 => Value::Number(varint(&mut bytes)),
                1 => {
                    let (number, rest) = bytes.split_at(8);
                    bytes = rest;
                    Value::Number(u64::from_le_bytes(number.try_into().unwrap()))
                }
                2 => {
                    let length = usize::try_from(varint(&mut bytes)).unwrap();
                    let (content, rest) = bytes.split_at(length);
                    bytes = rest;
                    Value::Bytes(content.to_vec())
                }
                other => panic!("wire type {other}"),
            };
            fields.0.entry(u32::try_from(tag >> 3).unwrap()).or_default().push(value);
        }
        fields
    }

    /// Numbers of the fields that the message has.
    pub fn numbers(&self) -> impl Iterator<Item = u32> {
        self.0.keys().copied()
    }

    pub fn has(&self, field: u32) -> bool {
        self.0.contains_key(&field)
    }

    /// # Panics
    /// If the field is not a number.
    pub fn number(&self, field: u32) -> i64 {
        match self.0.get(&field).and_then(|values| values.last()) {
            None => 0,
            Some(Value::Number(number)) => number.cast_signed(),
            Some(Value::Bytes(_)) => panic!("field {field} is no number"),
        }
    }

    /// # Panics
    /// If the field is a number.
    pub fn all(&self, field: u32) -> Vec<&[u8]> {
        let values = self.0.get(&field).into_iter().flatten();
        let bytes = values.map(|value| match value {
            Value::Bytes(bytes) => bytes.as_slice(),
            Value::Number(_) => panic!("field {field} is a number"),
        });
        bytes.collect()
    }

    pub fn text(&self, field: u32) -> String {
        self.all(field).last().map_or(String::new(), |bytes| String::from_utf8(bytes.to_vec()).unwrap())
    }

    pub fn texts(&self, field: u32) -> Vec<String> {
        self.all(field).iter().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()).collect()
    }

    pub fn message(&self, field: u32) -> Fields {
        self.all(field).last().map_or(Fields::default(), |bytes| Fields::read(bytes))
    }

    pub fn messages(&self, field: u32) -> Vec<Fields> {
        self.all(field).into_iter().map(Fields::read).collect()
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().expect("a whole number");
        *bytes = rest;
        number |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examples of the encoding's documentation, and the largest numbers.
    #[test]
    fn fields_have_documented_bytes() {
        assert_eq!(Writer::default().number(1, 150).finish(), b"\x08\x96\x01");
        assert_eq!(Writer::default().text(2, "testing").finish(), b"\x12\x07testing");
        let nested = Writer::default().message(3, Writer::default().number(1, 150)).finish();
        assert_eq!(nested, b"\x1a\x03\x08\x96\x01");
        assert_eq!(Writer::default().packed(6, &[3, 270, 86_942]).finish(), b"\x32\x06\x03\x8e\x02\x9e\xa7\x05");
        let negative = Writer::default().number(1, -2).finish();
        assert_eq!(negative, b"\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01");
        assert_eq!(Fields::read(&negative).number(1), -2);
        assert_eq!(Writer::default().double(2, 1.0).finish(), b"\x11\0\0\0\0\0\0\xf0\x3f");
        assert_eq!(Writer::default().bytes(150_000, b"x").finish(), b"\x82\x9f\x49\x01x");
    }
}
