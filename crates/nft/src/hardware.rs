//! Hardware addresses of Ethernet interfaces.

use std::fmt;
use std::str::FromStr;

/// The address of an Ethernet interface (EUI-48).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HardwareAddress(pub [u8; 6]);

/// Why a text is not a valid [`HardwareAddress`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid hardware address '{0}': expected six bytes such as 02:00:5e:10:00:01")]
pub struct HardwareAddressError(String);

impl fmt::Display for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for HardwareAddress {
    type Err = HardwareAddressError;

    fn from_str(text: &str) -> Result<HardwareAddress, HardwareAddressError> {
        let invalid = || HardwareAddressError(text.into());
        let two_digits = |part: &str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| two_digits(part)).ok_or_else(invalid)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| invalid())?;
        }
        if parts.next().is_some() { Err(invalid()) } else { Ok(HardwareAddress(bytes)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_address_is_read_as_it_prints() {
        let address = HardwareAddress([2, 0, 0x5e, 0x10, 0, 0xfe]);
        assert_eq!(address.to_string(), "02:00:5e:10:00:fe");
        assert_eq!("02:00:5E:10:00:fe".parse(), Ok(address));
        for bad in
            ["", "02:00:5e:10:00", "02:00:5e:10:00:fe:00", "2:0:5e:10:0:fe", "02-00-5e-10-00-fe", "+2:00:5e:10:00:fe"]
        {
            assert!(bad.parse::<HardwareAddress>().is_err(), "{bad}");
        }
    }
}
