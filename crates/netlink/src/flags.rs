//! Flags of a message (`NLM_F_*`). The meaning of some values depends on the kind of message: a GET request, a request
//! that creates an object, a message of a dump, or an acknowledgement.

/// `NLM_F_REQUEST`, set by [`crate::message()`].
pub const REQUEST: u16 = 0x1;
/// `NLM_F_ACK`: requests an acknowledgement; without it, only failed requests are acknowledged.
pub const ACK: u16 = 0x4;
/// `NLM_F_DUMP_INTR`: objects changed during the dump, which may lack some or repeat some.
pub const DUMP_INTERRUPTED: u16 = 0x10;
/// `NLM_F_DUMP`: lists all objects.
pub const DUMP: u16 = 0x300;
/// `NLM_F_EXCL`: fails if the object exists.
pub const EXCLUSIVE: u16 = 0x200;
/// `NLM_F_CREATE`: creates the object if it does not exist.
pub const CREATE: u16 = 0x400;
/// `NLM_F_APPEND`: adds the object after the others.
pub const APPEND: u16 = 0x800;
/// `NLM_F_CAPPED`, in an acknowledgement: it includes only the header of the request.
pub const CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`, in an acknowledgement: attributes follow (`NLMSGERR_ATTR_*`).
pub const ACK_ATTRIBUTES: u16 = 0x200;
