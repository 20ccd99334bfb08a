//! The attributes of one object, indexed by number.

use super::DecodeError;
use crate::message::{Attribute, Attributes};

/// One more than the largest attribute number that any decoder uses.
const COUNTED: usize = 28;

pub(super) struct AttributeIndex<'a> {
    object: &'static str,
    known: [Option<Attribute<'a>>; COUNTED],
    /// There was an attribute with a number of `COUNTED` or more.
    beyond: bool,
}

impl<'a> AttributeIndex<'a> {
    /// Of duplicate attributes the last one counts, as in the kernel's `nla_parse`.
    pub(super) fn of(object: &'static str, attributes: Attributes<'a>) -> Result<AttributeIndex<'a>, DecodeError> {
        let mut fields = AttributeIndex { object, known: [None; COUNTED], beyond: false };
        for attribute in attributes {
            let attribute = attribute?;
            match fields.known.get_mut(usize::from(attribute.kind)) {
                Some(place) => *place = Some(attribute),
                None => fields.beyond = true,
            }
        }
        Ok(fields)
    }

    pub(super) fn get(&self, number: u16) -> Option<Attribute<'a>> {
        self.known.get(usize::from(number)).copied().flatten()
    }

    pub(super) fn need(&self, number: u16) -> Result<Attribute<'a>, DecodeError> {
        self.get(number).ok_or(DecodeError::Missing { object: self.object, attribute: number })
    }

    /// The value of an attribute that must be there, with exactly `N` bytes.
    pub(super) fn array<const N: usize>(&self, number: u16) -> Result<[u8; N], DecodeError> {
        Ok(self.need(number)?.array()?)
    }

    pub(super) fn number(&self, number: u16) -> Result<Option<u32>, DecodeError> {
        Ok(self.get(number).map(|a| a.be32()).transpose()?)
    }

    pub(super) fn has_any(&self, numbers: &[u16]) -> bool {
        numbers.iter().any(|n| self.get(*n).is_some())
    }

    /// Whether every attribute is one of these.
    pub(super) fn has_only(&self, numbers: &[u16]) -> bool {
        let allowed = |n: usize| numbers.iter().any(|a| usize::from(*a) == n);
        !self.beyond && self.known.iter().enumerate().all(|(n, a)| a.is_none() || allowed(n))
    }
}
