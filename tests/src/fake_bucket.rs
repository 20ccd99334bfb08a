//! A fake S3 bucket with single-object PUT, GET and DELETE: path-style, over plain HTTP.

use std::collections::BTreeMap;
use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kit::http::{Head, Server, read_head};

const BUCKET: &str = "baselines";
const ACCESS_KEY: &str = "an-access-key";

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    /// Names in the order of the writes.
    written: Vec<String>,
    /// Methods that are refused with a status.
    refusal: Option<(&'static [&'static str], u16)>,
}

/// The bucket. It stops on drop.
pub struct FakeBucket {
    state: Arc<Mutex<State>>,
    server: Server,
}

impl FakeBucket {
    /// # Panics
    /// If it cannot listen on the loopback.
    pub fn start() -> FakeBucket {
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = state.clone();
        FakeBucket { state, server: Server::start(move |stream| serve(&stream, &shared)) }
    }

    /// The `--store` URL of a provider, for objects with this prefix.
    pub fn url(&self, prefix: &str) -> String {
        format!("s3://{BUCKET}/{prefix}")
    }

    /// Environment variables with the endpoint and the credentials.
    pub fn variables(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT", format!("http://{}", self.server.address())),
            ("AWS_ALLOW_HTTP", "true".into()),
            ("AWS_REGION", "nowhere-1".into()),
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.into()),
            ("AWS_SECRET_ACCESS_KEY", "a-secret".into()),
        ]
    }

    /// Starts to refuse these methods with this status.
    pub fn refuse(&self, methods: &'static [&'static str], status: u16) {
        self.lock().refusal = Some((methods, status));
    }

    pub fn heal(&self) {
        self.lock().refusal = None;
    }

    /// Names of the objects in the order of the writes; an object that was overwritten occurs again.
    pub fn written(&self) -> Vec<String> {
        self.lock().written.clone()
    }

    /// Writes all objects into a folder.
    ///
    /// # Panics
    /// If the folder cannot be written to.
    pub fn unpack(&self, folder: &Path) {
        for (name, bytes) in self.lock().objects.clone() {
            let path = folder.join(name);
            let parent = path.parent().expect("below the folder");
            std::fs::create_dir_all(parent).and_then(|()| std::fs::write(&path, bytes)).expect("a folder of ours");
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Clients require the header, but nothing depends on it.
const MODIFIED: &str = "Thu, 01 Jan 2026 00:00:00 GMT";

/// Serves requests one at a time.
fn serve(stream: &TcpStream, state: &Mutex<State>) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    while let Some(head) = read_head(&mut reader)? {
        let mut body = vec![0; head.body_length()?];
        reader.read_exact(&mut body)?;
        let (status, says) = answer(&mut lock(state), &head, body);
        let length = says.len();
        write!(writer, "HTTP/1.1 {status} Fake\r\netag: \"{length:x}\"\r\nlast-modified: {MODIFIED}\r\n")?;
        write!(writer, "content-length: {length}\r\n\r\n")?;
        if head.method != "HEAD" {
            writer.write_all(&says)?;
        }
    }
    Ok(())
}

/// Status and body.
fn answer(state: &mut State, head: &Head, body: Vec<u8>) -> (u16, Vec<u8>) {
    let says = |status: u16, code: &str| (status, format!("<Error><Code>{code}</Code></Error>").into_bytes());
    let is_signed = head.header("authorization").starts_with(&format!("AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/"));
    if !is_signed {
        return says(403, "AccessDenied");
    }
    let method = head.method.as_str();
    if let Some((_, status)) = state.refusal.filter(|(methods, _)| methods.contains(&method)) {
        return says(status, "Refused");
    }
    let Some(name) = head.path.strip_prefix(&format!("/{BUCKET}/")) else { return says(404, "NoSuchBucket") };
    match method {
        "PUT" => {
            state.objects.insert(name.into(), body);
            state.written.push(name.into());
            (200, vec![])
        }
        "GET" | "HEAD" => match state.objects.get(name) {
            Some(bytes) => (200, bytes.clone()),
            None => says(404, "NoSuchKey"),
        },
        // Idempotent: a missing object is also deleted.
        "DELETE" => {
            state.objects.remove(name);
            (204, vec![])
        }
        _ => says(501, "NotImplemented"),
    }
}
