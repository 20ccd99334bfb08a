//! libnftnl's objects, each of which can append itself to a buffer as one message.

use std::alloc::{Layout, handle_alloc_error};
use std::ffi::CString;
use std::marker::PhantomData;
use std::ptr::NonNull;

use libc::{c_int, nlmsghdr};
use nft::Family;
use nftnl_sys as sys;

use super::Buffer;
use crate::decode::{EXTHDR_IPV4, EXTHDR_IPV6, INVERTED};
use crate::expression::{Expression, LimitExpression, VerdictCode};
use crate::table_snapshot::RawElement;

/// The header fields of a message. `kind` is one of `NFT_MSG_*`, without its subsystem.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) family: u8,
    pub(crate) sequence: u32,
}

/// `NFT_DATA_VALUE_MAXLEN`: libnftnl copies data into fields of this size without a length check (`nftnl_data_reg`).
const LONGEST_DATA: usize = 64;
/// Both headers, and padding.
const MESSAGE_ROOM: usize = 32;

/// Upper bound of the room for an attribute of `length` bytes, with up to four headers of nested attributes.
fn room_of(length: usize) -> usize {
    16 + 4 + length.next_multiple_of(4)
}

/// libnftnl fails to allocate and to set an attribute only when out of memory, which aborts the program as elsewhere in
/// Rust.
fn allocated<T>(pointer: *mut T) -> NonNull<T> {
    NonNull::new(pointer).unwrap_or_else(|| handle_alloc_error(Layout::new::<usize>()))
}

fn set_worked(result: c_int) {
    if result < 0 {
        handle_alloc_error(Layout::new::<usize>());
    }
}

fn text(name: &str) -> CString {
    CString::new(name).expect("names of the language hold no NUL")
}

/// Appends a message whose body `payload` writes, at most `room` bytes after the header.
fn append(buffer: &mut Buffer, header: Header, room: usize, payload: impl FnOnce(*mut nlmsghdr)) {
    buffer.append(room + MESSAGE_ROOM, |place| {
        // SAFETY: `place` is aligned to 4 and has room for the 20 bytes of both headers, which is all that
        // nftnl_nlmsg_build_hdr writes; it returns `place`. `payload` writes behind them at most `room` bytes, as its
        // caller counted, and keeps `nlmsg_len` true (libmnl's mnl_attr_put).
        unsafe {
            let message = sys::nftnl_nlmsg_build_hdr(
                place.cast(),
                header.kind,
                u16::from(header.family),
                header.flags,
                header.sequence,
            );
            payload(message);
            (*message).nlmsg_len as usize
        }
    });
}

/// An owned libnftnl object with string attributes.
macro_rules! object {
    ($name:ident, $raw:ident, $alloc:ident, $free:ident, $set_str:ident) => {
        pub(crate) struct $name {
            raw: NonNull<sys::$raw>,
            room: usize,
            /// Not `Send`: libnftnl does not document that its objects may change threads.
            here: PhantomData<*mut ()>,
        }

        impl $name {
            fn new() -> $name {
                // SAFETY: the function has no arguments, and returns an object that we own and free, or NULL.
                $name { raw: allocated(unsafe { sys::$alloc() }), room: 0, here: PhantomData }
            }

            fn text(&mut self, attribute: u32, value: &str) {
                let value = text(value);
                self.room += room_of(value.as_bytes_with_nul().len());
                // SAFETY: the object is live, the attribute is one of its strings, and the string is copied.
                set_worked(unsafe { sys::$set_str(self.raw.as_ptr(), attribute as u16, value.as_ptr()) });
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: we own the object and this is its last use; everything added to it is freed with it.
                unsafe { sys::$free(self.raw.as_ptr()) };
            }
        }
    };
}

macro_rules! with_numbers {
    ($name:ident, $set_u32:ident) => {
        impl $name {
            fn number(&mut self, attribute: u32, value: u32) {
                self.room += room_of(4);
                // SAFETY: the object is live and the attribute is one of its 32-bit numbers.
                unsafe { sys::$set_u32(self.raw.as_ptr(), attribute as u16, value) };
            }
        }
    };
}

macro_rules! with_userdata {
    ($name:ident, $set_data:ident) => {
        impl $name {
            fn userdata(&mut self, attribute: u32, bytes: &[u8]) {
                if bytes.is_empty() {
                    return;
                }
                self.room += room_of(bytes.len());
                // SAFETY: the object is live, the attribute is its userdata, and `bytes.len()` bytes are copied into
                // memory that libnftnl allocates.
                set_worked(unsafe {
                    sys::$set_data(self.raw.as_ptr(), attribute as u16, bytes.as_ptr().cast(), bytes.len() as u32)
                });
            }
        }
    };
}

object!(TableObject, nftnl_table, nftnl_table_alloc, nftnl_table_free, nftnl_table_set_str);
object!(ChainObject, nftnl_chain, nftnl_chain_alloc, nftnl_chain_free, nftnl_chain_set_str);
object!(RuleObject, nftnl_rule, nftnl_rule_alloc, nftnl_rule_free, nftnl_rule_set_str);
object!(SetObject, nftnl_set, nftnl_set_alloc, nftnl_set_free, nftnl_set_set_str);
with_numbers!(TableObject, nftnl_table_set_u32);
with_numbers!(ChainObject, nftnl_chain_set_u32);
with_numbers!(SetObject, nftnl_set_set_u32);
with_userdata!(TableObject, nftnl_table_set_data);
with_userdata!(RuleObject, nftnl_rule_set_data);
with_userdata!(SetObject, nftnl_set_set_data);

impl TableObject {
    pub(crate) fn named(table: &str) -> TableObject {
        let mut object = TableObject::new();
        object.text(sys::NFTNL_TABLE_NAME, table);
        object
    }

    pub(crate) fn with_contents(table: &str, flags: u32, userdata: &[u8]) -> TableObject {
        let mut object = TableObject::named(table);
        object.number(sys::NFTNL_TABLE_FLAGS, flags);
        object.userdata(sys::NFTNL_TABLE_USERDATA, userdata);
        object
    }

    pub(crate) fn append_to(&self, buffer: &mut Buffer, header: Header) {
        // SAFETY: the object is live, and `room` bounds the encoded size of its attributes.
        append(buffer, header, self.room, |m| unsafe { sys::nftnl_table_nlmsg_build_payload(m, self.raw.as_ptr()) });
    }
}

impl ChainObject {
    pub(crate) fn named(table: &str, chain: &str) -> ChainObject {
        let mut object = ChainObject::new();
        object.text(sys::NFTNL_CHAIN_TABLE, table);
        object.text(sys::NFTNL_CHAIN_NAME, chain);
        object
    }

    /// Makes the chain a base chain.
    pub(crate) fn hook(&mut self, kind: &str, number: u32, priority: i32, policy: u32) {
        self.text(sys::NFTNL_CHAIN_TYPE, kind);
        self.number(sys::NFTNL_CHAIN_HOOKNUM, number);
        self.number(sys::NFTNL_CHAIN_POLICY, policy);
        self.room += room_of(4);
        // SAFETY: the object is live and its priority is a signed number of 32 bits.
        unsafe { sys::nftnl_chain_set_s32(self.raw.as_ptr(), sys::NFTNL_CHAIN_PRIO as u16, priority) };
    }

    /// Sets the interface of a base chain of family `netdev`.
    pub(crate) fn device(&mut self, interface: &str) {
        self.text(sys::NFTNL_CHAIN_DEV, interface);
    }

    pub(crate) fn append_to(&self, buffer: &mut Buffer, header: Header) {
        // SAFETY: the object is live, and `room` bounds the encoded size of its attributes.
        append(buffer, header, self.room, |m| unsafe { sys::nftnl_chain_nlmsg_build_payload(m, self.raw.as_ptr()) });
    }
}

impl RuleObject {
    pub(crate) fn in_chain(table: &str, chain: &str) -> RuleObject {
        let mut object = RuleObject::new();
        object.text(sys::NFTNL_RULE_TABLE, table);
        object.text(sys::NFTNL_RULE_CHAIN, chain);
        object
    }

    pub(crate) fn comment(&mut self, userdata: &[u8]) {
        self.userdata(sys::NFTNL_RULE_USERDATA, userdata);
    }

    pub(crate) fn push(&mut self, expression: &Expression) {
        let object = ExpressionObject::of(expression);
        self.room += object.room;
        // SAFETY: both objects are live; the rule becomes the owner of the expression, so that only the rule frees it.
        unsafe { sys::nftnl_rule_add_expr(self.raw.as_ptr(), object.raw.as_ptr()) };
    }

    pub(crate) fn append_to(&self, buffer: &mut Buffer, header: Header) {
        // SAFETY: the object is live, and `room` bounds the encoded size of its attributes and expressions.
        append(buffer, header, self.room, |m| unsafe { sys::nftnl_rule_nlmsg_build_payload(m, self.raw.as_ptr()) });
    }
}

impl SetObject {
    pub(crate) fn named(table: &str, set: &str) -> SetObject {
        let mut object = SetObject::new();
        object.text(sys::NFTNL_SET_TABLE, table);
        object.text(sys::NFTNL_SET_NAME, set);
        object
    }

    pub(crate) fn header(&mut self, header: &crate::lower::SetHeader, id: u32, userdata: &[u8]) {
        self.number(sys::NFTNL_SET_FLAGS, header.flags);
        self.number(sys::NFTNL_SET_KEY_TYPE, header.key_type);
        self.number(sys::NFTNL_SET_KEY_LEN, header.key_length);
        if let Some(data_type) = header.data_type {
            self.number(sys::NFTNL_SET_DATA_TYPE, data_type);
            self.number(sys::NFTNL_SET_DATA_LEN, 0);
        }
        if let Some(size) = header.size {
            self.number(sys::NFTNL_SET_DESC_SIZE, size);
        }
        if let Some(millis) = header.timeout_millis {
            self.room += room_of(8);
            // SAFETY: the object is live and its timeout is a number of 64 bits.
            unsafe { sys::nftnl_set_set_u64(self.raw.as_ptr(), sys::NFTNL_SET_TIMEOUT as u16, millis) };
        }
        self.number(sys::NFTNL_SET_ID, id);
        self.userdata(sys::NFTNL_SET_USERDATA, userdata);
    }

    /// Adds an element whose key has at most 64 bytes.
    pub(crate) fn push(&mut self, element: &RawElement) {
        let mut object = ElementObject::new();
        object.bytes(sys::NFTNL_SET_ELEM_KEY, &element.key);
        if element.end {
            object.number(sys::NFTNL_SET_ELEM_FLAGS, 1);
        }
        if let Some(verdict) = &element.verdict {
            object.number(sys::NFTNL_SET_ELEM_VERDICT, verdict.code());
            if let VerdictCode::Goto(chain) | VerdictCode::Jump(chain) = verdict {
                object.text(sys::NFTNL_SET_ELEM_CHAIN, chain);
            }
        }
        let userdata = crate::userdata::of_comment(element.comment.as_deref(), element.open);
        object.bytes(sys::NFTNL_SET_ELEM_USERDATA, &userdata);
        self.room += object.room;
        // SAFETY: both objects are live; the set becomes the owner of the element, so that only the set frees it.
        unsafe { sys::nftnl_set_elem_add(self.raw.as_ptr(), object.raw.as_ptr()) };
    }

    /// Upper bound of the bytes of the message.
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    pub(crate) fn append_to(&self, buffer: &mut Buffer, header: Header) {
        // SAFETY: the object is live, and `room` bounds the encoded size of its attributes.
        append(buffer, header, self.room, |m| unsafe { sys::nftnl_set_nlmsg_build_payload(m, self.raw.as_ptr()) });
    }

    /// Appends a message with the elements instead of the set.
    pub(crate) fn append_elements_to(&self, buffer: &mut Buffer, header: Header) {
        append(buffer, header, self.room, |m| {
            // SAFETY: the object is live, and `room` bounds the encoded size of its names and elements.
            unsafe { sys::nftnl_set_elems_nlmsg_build_payload(m, self.raw.as_ptr()) }
        });
    }
}

/// An element until a set becomes its owner, which always happens right after its creation.
struct ElementObject {
    raw: NonNull<sys::nftnl_set_elem>,
    room: usize,
}

impl ElementObject {
    fn new() -> ElementObject {
        // SAFETY: the function has no arguments, and returns an object that we own, or NULL.
        ElementObject { raw: allocated(unsafe { sys::nftnl_set_elem_alloc() }), room: room_of(0) }
    }

    fn bytes(&mut self, attribute: u32, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let fits = attribute == sys::NFTNL_SET_ELEM_USERDATA || bytes.len() <= LONGEST_DATA;
        assert!(fits, "a key of {} bytes", bytes.len());
        self.room += room_of(bytes.len());
        // SAFETY: the element is live; a key fits the field that libnftnl copies it into (asserted above), and userdata
        // is copied into memory that libnftnl allocates for it.
        set_worked(unsafe {
            sys::nftnl_set_elem_set(self.raw.as_ptr(), attribute as u16, bytes.as_ptr().cast(), bytes.len() as u32)
        });
    }

    fn number(&mut self, attribute: u32, value: u32) {
        self.room += room_of(4);
        // SAFETY: the element is live and the attribute (flags or verdict) is a number of 32 bits.
        unsafe { sys::nftnl_set_elem_set_u32(self.raw.as_ptr(), attribute as u16, value) };
    }

    fn text(&mut self, attribute: u32, value: &str) {
        let value = text(value);
        self.room += room_of(value.as_bytes_with_nul().len());
        // SAFETY: the element is live, the attribute is the verdict's chain, and the string is copied.
        set_worked(unsafe { sys::nftnl_set_elem_set_str(self.raw.as_ptr(), attribute as u16, value.as_ptr()) });
    }
}

/// An expression until a rule becomes its owner, which always happens right after its creation.
struct ExpressionObject {
    raw: NonNull<sys::nftnl_expr>,
    room: usize,
}

impl ExpressionObject {
    fn of(expression: &Expression) -> ExpressionObject {
        match expression {
            Expression::Meta { key, to } => ExpressionObject::new("meta")
                .number(sys::NFTNL_EXPR_META_KEY, key.number())
                .number(sys::NFTNL_EXPR_META_DREG, to.0),
            Expression::Immediate { to, data } => ExpressionObject::new("immediate")
                .number(sys::NFTNL_EXPR_IMM_DREG, to.0)
                .data(sys::NFTNL_EXPR_IMM_DATA, data),
            Expression::MetaSet { key, from } => ExpressionObject::new("meta")
                .number(sys::NFTNL_EXPR_META_KEY, key.number())
                .number(sys::NFTNL_EXPR_META_SREG, from.0),
            Expression::Ct { key, direction, to } => {
                let object = ExpressionObject::new("ct")
                    .number(sys::NFTNL_EXPR_CT_KEY, key.number())
                    .number(sys::NFTNL_EXPR_CT_DREG, to.0);
                match direction {
                    Some(direction) => object.byte(sys::NFTNL_EXPR_CT_DIR, *direction),
                    None => object,
                }
            }
            Expression::CtSet { key, from } => ExpressionObject::new("ct")
                .number(sys::NFTNL_EXPR_CT_KEY, key.number())
                .number(sys::NFTNL_EXPR_CT_SREG, from.0),
            Expression::Payload { base, offset, length, to } => ExpressionObject::new("payload")
                .number(sys::NFTNL_EXPR_PAYLOAD_DREG, to.0)
                .number(sys::NFTNL_EXPR_PAYLOAD_BASE, base.number())
                .number(sys::NFTNL_EXPR_PAYLOAD_OFFSET, *offset)
                .number(sys::NFTNL_EXPR_PAYLOAD_LEN, *length),
            Expression::PayloadSet { base, offset, length, from } => ExpressionObject::new("payload")
                .number(sys::NFTNL_EXPR_PAYLOAD_SREG, from.0)
                .number(sys::NFTNL_EXPR_PAYLOAD_BASE, base.number())
                .number(sys::NFTNL_EXPR_PAYLOAD_OFFSET, *offset)
                .number(sys::NFTNL_EXPR_PAYLOAD_LEN, *length)
                // NFT_PAYLOAD_CSUM_NONE
                .number(sys::NFTNL_EXPR_PAYLOAD_CSUM_TYPE, 0)
                .number(sys::NFTNL_EXPR_PAYLOAD_CSUM_OFFSET, 0),
            Expression::HeaderByte { kind, offset, to } => ExpressionObject::new("exthdr")
                .number(sys::NFTNL_EXPR_EXTHDR_DREG, to.0)
                .byte(sys::NFTNL_EXPR_EXTHDR_TYPE, *kind)
                .number(sys::NFTNL_EXPR_EXTHDR_OFFSET, *offset)
                .number(sys::NFTNL_EXPR_EXTHDR_LEN, 1)
                .number(sys::NFTNL_EXPR_EXTHDR_OP, EXTHDR_IPV6),
            Expression::HeaderPresent { family, kind, to } => {
                let operation = match family {
                    Family::V4 => EXTHDR_IPV4,
                    Family::V6 => EXTHDR_IPV6,
                };
                ExpressionObject::new("exthdr")
                    .number(sys::NFTNL_EXPR_EXTHDR_DREG, to.0)
                    .byte(sys::NFTNL_EXPR_EXTHDR_TYPE, *kind)
                    .number(sys::NFTNL_EXPR_EXTHDR_OFFSET, 0)
                    .number(sys::NFTNL_EXPR_EXTHDR_LEN, 1)
                    .number(sys::NFTNL_EXPR_EXTHDR_OP, operation)
                    // NFT_EXTHDR_F_PRESENT
                    .number(sys::NFTNL_EXPR_EXTHDR_FLAGS, 1)
            }
            Expression::Cmp { operator, from, data } => ExpressionObject::new("cmp")
                .number(sys::NFTNL_EXPR_CMP_SREG, from.0)
                .number(sys::NFTNL_EXPR_CMP_OP, operator.number())
                .data(sys::NFTNL_EXPR_CMP_DATA, data),
            Expression::Bitwise { from, to, mask, xor } => ExpressionObject::new("bitwise")
                .number(sys::NFTNL_EXPR_BITWISE_SREG, from.0)
                .number(sys::NFTNL_EXPR_BITWISE_DREG, to.0)
                .number(sys::NFTNL_EXPR_BITWISE_OP, 0)
                .number(sys::NFTNL_EXPR_BITWISE_LEN, mask.len() as u32)
                .data(sys::NFTNL_EXPR_BITWISE_MASK, mask)
                .data(sys::NFTNL_EXPR_BITWISE_XOR, xor),
            Expression::Lookup { set, from, to, inverted } => {
                let object = ExpressionObject::new("lookup")
                    .number(sys::NFTNL_EXPR_LOOKUP_SREG, from.0)
                    .text(sys::NFTNL_EXPR_LOOKUP_SET, set);
                let object = match to {
                    Some(to) => object.number(sys::NFTNL_EXPR_LOOKUP_DREG, to.0),
                    None => object,
                };
                if *inverted { object.number(sys::NFTNL_EXPR_LOOKUP_FLAGS, INVERTED) } else { object }
            }
            Expression::Verdict(verdict) => {
                let object = ExpressionObject::new("immediate")
                    .number(sys::NFTNL_EXPR_IMM_DREG, 0)
                    .number(sys::NFTNL_EXPR_IMM_VERDICT, verdict.code());
                match verdict {
                    VerdictCode::Goto(chain) | VerdictCode::Jump(chain) => {
                        object.text(sys::NFTNL_EXPR_IMM_CHAIN, chain)
                    }
                    VerdictCode::Accept | VerdictCode::Drop | VerdictCode::Foreign(_) => object,
                }
            }
            Expression::Counter => ExpressionObject::new("counter"),
            Expression::Limit(limit) => ExpressionObject::of_limit(limit),
            Expression::Record { set, from, limit } => ExpressionObject::new("dynset")
                .number(sys::NFTNL_EXPR_DYNSET_SREG_KEY, from.0)
                // NFT_DYNSET_OP_UPDATE
                .number(sys::NFTNL_EXPR_DYNSET_OP, 1)
                .text(sys::NFTNL_EXPR_DYNSET_SET_NAME, set)
                // NFT_DYNSET_F_EXPR: there is a list of expressions.
                .number(sys::NFTNL_EXPR_DYNSET_FLAGS, 2)
                .with_each_element(ExpressionObject::new("counter"))
                .with_each_element(ExpressionObject::of_limit(limit)),
            Expression::Log { prefix, group, snap_bytes } => ExpressionObject::new("log")
                .text(sys::NFTNL_EXPR_LOG_PREFIX, prefix)
                .short(sys::NFTNL_EXPR_LOG_GROUP, *group)
                .number(sys::NFTNL_EXPR_LOG_SNAPLEN, *snap_bytes),
        }
    }

    /// Limits packets (`NFT_LIMIT_PKTS`).
    fn of_limit(limit: &LimitExpression) -> ExpressionObject {
        ExpressionObject::new("limit")
            .long(sys::NFTNL_EXPR_LIMIT_RATE, limit.packets)
            .long(sys::NFTNL_EXPR_LIMIT_UNIT, limit.per_seconds)
            .number(sys::NFTNL_EXPR_LIMIT_BURST, limit.burst)
            .number(sys::NFTNL_EXPR_LIMIT_TYPE, 0)
            .number(sys::NFTNL_EXPR_LIMIT_FLAGS, limit.over.into())
    }

    /// Adds an expression that the kernel clones for each element of a dynamic set.
    fn with_each_element(mut self, inner: ExpressionObject) -> ExpressionObject {
        self.room += inner.room;
        // SAFETY: both expressions are live; this one, a dynset, becomes the owner of the inner one, so that only it
        // frees it.
        unsafe {
            sys::nftnl_expr_add_expr(self.raw.as_ptr(), sys::NFTNL_EXPR_DYNSET_EXPRESSIONS, inner.raw.as_ptr());
        }
        self
    }

    fn new(kind: &str) -> ExpressionObject {
        let kind = text(kind);
        // SAFETY: the function only reads the name, without keeping a pointer; it returns an object that we own, or
        // NULL when out of memory (all names above are known to libnftnl).
        let raw = allocated(unsafe { sys::nftnl_expr_alloc(kind.as_ptr()) });
        ExpressionObject { raw, room: room_of(0) + room_of(kind.as_bytes_with_nul().len()) }
    }

    fn number(mut self, attribute: u32, value: u32) -> ExpressionObject {
        self.room += room_of(4);
        // SAFETY: the expression is live and the attribute is a number of 32 bits of its kind.
        unsafe { sys::nftnl_expr_set_u32(self.raw.as_ptr(), attribute as u16, value) };
        self
    }

    fn long(mut self, attribute: u32, value: u64) -> ExpressionObject {
        self.room += room_of(8);
        // SAFETY: the expression is live and the attribute is a number of 64 bits of its kind.
        unsafe { sys::nftnl_expr_set_u64(self.raw.as_ptr(), attribute as u16, value) };
        self
    }

    fn short(mut self, attribute: u32, value: u16) -> ExpressionObject {
        self.room += room_of(2);
        // SAFETY: the expression is live and the attribute is a number of 16 bits of its kind.
        unsafe { sys::nftnl_expr_set_u16(self.raw.as_ptr(), attribute as u16, value) };
        self
    }

    fn byte(mut self, attribute: u32, value: u8) -> ExpressionObject {
        self.room += room_of(1);
        // SAFETY: the expression is live and the attribute is a byte of its kind.
        unsafe { sys::nftnl_expr_set_u8(self.raw.as_ptr(), attribute as u16, value) };
        self
    }

    fn text(mut self, attribute: u32, value: &str) -> ExpressionObject {
        let value = text(value);
        self.room += room_of(value.as_bytes_with_nul().len());
        // SAFETY: the expression is live, the attribute is a string of its kind, and the string is copied.
        set_worked(unsafe { sys::nftnl_expr_set_str(self.raw.as_ptr(), attribute as u16, value.as_ptr()) });
        self
    }

    fn data(mut self, attribute: u32, bytes: &[u8]) -> ExpressionObject {
        assert!(bytes.len() <= LONGEST_DATA, "a constant of {} bytes", bytes.len());
        self.room += room_of(bytes.len());
        // SAFETY: the expression is live, and the bytes fit the field that libnftnl copies them into (asserted above).
        set_worked(unsafe {
            sys::nftnl_expr_set(self.raw.as_ptr(), attribute as u16, bytes.as_ptr().cast(), bytes.len() as u32)
        });
        self
    }
}
