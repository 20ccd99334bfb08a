//! Flags of a message (`NLM_F_*`). Some values mean something else in a request, in a request that creates an object,
//! in a dump and in an acknowledgement.

/// `NLM_F_REQUEST`, set by [`crate::message()`].
pub const REQUEST: u16 = 0x1;
/// `NLM_F_ACK`: the kernel acknowledges a request that has no other response.
pub const ACK: u16 = 0x4;
/// `NLM_F_DUMP_INTR`: objects changed during the dump, so that some may be missing.
pub const DUMP_INTERRUPTED: u16 = 0x10;
/// `NLM_F_DUMP`: lists all objects.
pub const DUMP: u16 = 0x300;
/// `NLM_F_EXCL`: fails if the object exists.
pub const EXCLUSIVE: u16 = 0x200;
/// `NLM_F_CREATE`: creates the object if it does not exist.
pub const CREATE: u16 = 0x400;
/// `NLM_F_APPEND`: adds the object behind the others.
pub const APPEND: u16 = 0x800;
/// `NLM_F_CAPPED`, of an error: it does not include the refused message.
pub const CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`, of an error: attributes follow (`NLMSGERR_ATTR_*`).
pub const ACK_ATTRIBUTES: u16 = 0x200;
