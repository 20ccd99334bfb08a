//! A byte buffer aligned to 4, as netlink headers require.

/// A growing sequence of netlink messages, each padded to 4 bytes.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    words: Vec<u32>,
}

impl Buffer {
    pub(crate) fn of_length(bytes: usize) -> Buffer {
        Buffer { words: vec![0; bytes.div_ceil(4)] }
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.words.len() * 4
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: every bit pattern is a valid u8, u8 has no alignment, and the length is that of the vector in bytes.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.len()) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; every bit pattern is a valid u32 too, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.len()) }
    }

    /// Appends bytes and pads them with zeros.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(4) {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            self.words.push(u32::from_ne_bytes(word));
        }
    }

    /// Passes `room` zeroed bytes at the end to `write` and keeps as many as it returns.
    pub(super) fn append(&mut self, room: usize, write: impl FnOnce(*mut u32) -> usize) {
        let start = self.words.len();
        self.words.resize(start + room.div_ceil(4), 0);
        let written = write(self.words[start..].as_mut_ptr());
        assert!(written <= room, "a netlink message of {written} bytes overran its buffer of {room} bytes");
        self.words.truncate(start + written.div_ceil(4));
    }
}
