//! The bytecode of rules. Attribute numbers are those of `uapi/linux/netfilter/nf_tables.h`.

use nft::Family;

use super::DecodeError;
use super::attributes::AttributeIndex;
use crate::expression::{Base, Compare, CtKey, Expression, LimitExpression, MetaKey, Register, VerdictCode};
use crate::message::{Attribute, Attributes};

/// `NFT_EXTHDR_OP_IPV6` and `NFT_EXTHDR_OP_IPV4`
pub(crate) const EXTHDR_IPV6: u32 = 0;
pub(crate) const EXTHDR_IPV4: u32 = 2;

/// `NFT_LOOKUP_F_INV`
pub(crate) const INVERTED: u32 = 1;

/// The expressions of a rule; `None` if the language lacks one of them.
pub(super) fn expressions(list: Attributes<'_>) -> Result<Option<Vec<Expression>>, DecodeError> {
    let mut all = Some(Vec::new());
    for attribute in list {
        let fields = AttributeIndex::of("an expression", attribute?.nested())?;
        let name = fields.need(1)?.text()?;
        let data = fields.get(2).map_or(Attributes::new(&[]), |a| a.nested());
        match (expression(name, AttributeIndex::of("an expression's data", data)?)?, &mut all) {
            (Some(expression), Some(all)) => all.push(expression),
            (None, _) => all = None,
            (Some(_), None) => {}
        }
    }
    Ok(all)
}

fn expression(name: &str, f: AttributeIndex<'_>) -> Result<Option<Expression>, DecodeError> {
    match name {
        "meta" if f.has_only(&[1, 2]) => {
            let (Some(to), Some(key)) = (f.number(1)?, f.number(2)?) else { return Ok(None) };
            let key = MetaKey::ALL.into_iter().find(|k| k.number() == key);
            Ok(key.map(|key| Expression::Meta { key, to: Register(to) }))
        }
        // NFTA_META_SREG instead of NFTA_META_DREG
        "meta" if f.has_only(&[2, 3]) => {
            let (Some(key), Some(from)) = (f.number(2)?, f.number(3)?) else { return Ok(None) };
            let key = MetaKey::ALL.into_iter().find(|k| k.number() == key);
            Ok(key.map(|key| Expression::MetaSet { key, from: Register(from) }))
        }
        "ct" if f.has_only(&[1, 2, 3, 4]) => ct(&f),
        "payload" if f.has_only(&[1, 2, 3, 4]) => {
            let (Some(to), Some(base), Some(offset), Some(length)) =
                (f.number(1)?, f.number(2)?, f.number(3)?, f.number(4)?)
            else {
                return Ok(None);
            };
            let base = Base::ALL.into_iter().find(|b| b.number() == base);
            Ok(base.map(|base| Expression::Payload { base, offset, length, to: Register(to) }))
        }
        "payload" if f.has_only(&[2, 3, 4, 5, 6, 7, 8]) => payload_set(&f),
        "exthdr" if f.has_only(&[1, 2, 3, 4, 5, 6]) => header(&f),
        "cmp" if f.has_only(&[1, 2, 3]) => {
            let (Some(from), Some(operator), Some(data)) = (f.number(1)?, f.number(2)?, f.get(3)) else {
                return Ok(None);
            };
            let operator = Compare::ALL.into_iter().find(|o| o.number() == operator);
            let data = value(data)?;
            Ok(operator.zip(data).map(|(operator, data)| Expression::Cmp { operator, from: Register(from), data }))
        }
        "bitwise" if f.has_only(&[1, 2, 3, 4, 5, 6]) => bitwise(&f),
        "lookup" if f.has_only(&[1, 2, 3, 4, 5]) => {
            let (Some(set), Some(from)) = (f.get(1), f.number(2)?) else { return Ok(None) };
            let inverted = match f.number(5)? {
                None | Some(0) => false,
                Some(INVERTED) => true,
                Some(_) => return Ok(None),
            };
            let to = f.number(3)?.map(Register);
            Ok(Some(Expression::Lookup { set: set.text()?.into(), from: Register(from), to, inverted }))
        }
        "immediate" if f.has_only(&[1, 2]) => {
            let (Some(to), Some(data)) = (f.number(1)?, f.get(2)) else { return Ok(None) };
            match to {
                0 => Ok(verdict(data)?.map(Expression::Verdict)),
                to => Ok(value(data)?.map(|data| Expression::Immediate { to: Register(to), data })),
            }
        }
        "counter" => Ok(Some(Expression::Counter)),
        "limit" => Ok(limit(&f)?.map(Expression::Limit)),
        "dynset" => record(&f),
        "log" if f.has_only(&[1, 2, 3]) => {
            let (Some(group), Some(prefix), Some(snap_bytes)) = (f.get(1), f.get(2), f.number(3)?) else {
                return Ok(None);
            };
            let (group, prefix) = (group.be16()?, prefix.text()?.into());
            Ok(Some(Expression::Log { prefix, group, snap_bytes }))
        }
        _ => Ok(None),
    }
}

/// `NFTA_LIMIT_*`; packets only.
fn limit(f: &AttributeIndex<'_>) -> Result<Option<LimitExpression>, DecodeError> {
    let (Some(packets), Some(per), Some(burst)) = (f.get(1), f.get(2), f.number(3)?) else { return Ok(None) };
    let (of_packets, flags) = (f.number(4)?.is_none_or(|kind| kind == 0), f.number(5)?.unwrap_or(0));
    // `NFT_LIMIT_F_INV`
    let over = flags == 1;
    let is_known = of_packets && flags <= 1;
    Ok(is_known.then_some(LimitExpression { packets: packets.be64()?, per_seconds: per.be64()?, burst, over }))
}

/// `NFTA_DYNSET_*`. The kernel reports a timeout of 0 if the set's timeout applies.
fn record(f: &AttributeIndex<'_>) -> Result<Option<Expression>, DecodeError> {
    const UPDATE: u32 = 1;
    let own_timeout = f.get(6).map(|a| a.be64()).transpose()?.is_some_and(|timeout| timeout != 0);
    let (Some(set), Some(from), Some(list)) = (f.get(1), f.number(4)?, f.get(10)) else { return Ok(None) };
    if f.number(3)? != Some(UPDATE) || own_timeout || f.has_any(&[5, 7]) || f.number(9)?.unwrap_or(0) & INVERTED != 0 {
        return Ok(None);
    }
    let counts_and_limits = match expressions(list.nested())?.as_deref() {
        Some([Expression::Counter, Expression::Limit(limit)]) => Some(*limit),
        _ => None,
    };
    let set: String = set.text()?.into();
    Ok(counts_and_limits.map(|limit| Expression::Record { set, from: Register(from), limit }))
}

/// `NFTA_PAYLOAD_*`; a write without checksum correction.
fn payload_set(f: &AttributeIndex<'_>) -> Result<Option<Expression>, DecodeError> {
    let (Some(base), Some(offset), Some(length), Some(from)) = (f.number(2)?, f.number(3)?, f.number(4)?, f.number(5)?)
    else {
        return Ok(None);
    };
    if f.number(6)?.unwrap_or(0) != 0 || f.number(8)?.unwrap_or(0) != 0 {
        return Ok(None);
    }
    let base = Base::ALL.into_iter().find(|b| b.number() == base);
    Ok(base.map(|base| Expression::PayloadSet { base, offset, length, from: Register(from) }))
}

/// `NFTA_EXTHDR_*`; the presence of a header or option, or one byte of an IPv6 extension header.
fn header(f: &AttributeIndex<'_>) -> Result<Option<Expression>, DecodeError> {
    const PRESENT: u32 = 1;
    let (Some(to), Some(kind)) = (f.number(1)?, f.get(2)) else { return Ok(None) };
    let family = match f.number(6)?.unwrap_or(EXTHDR_IPV6) {
        EXTHDR_IPV6 => Family::V6,
        EXTHDR_IPV4 => Family::V4,
        _ => return Ok(None),
    };
    let (kind, to) = (kind.byte()?, Register(to));
    Ok(match (f.number(3)?, f.number(4)?, f.number(5)?, family) {
        (Some(0), Some(1), Some(PRESENT), family) => Some(Expression::HeaderPresent { family, kind, to }),
        (Some(offset), Some(1), None | Some(0), Family::V6) => Some(Expression::HeaderByte { kind, offset, to }),
        _ => None,
    })
}

fn ct(f: &AttributeIndex<'_>) -> Result<Option<Expression>, DecodeError> {
    let number = f.number(2)?;
    let Some(key) = CtKey::ALL.into_iter().find(|k| Some(k.number()) == number) else { return Ok(None) };
    let direction = f.get(3).map(|a| a.byte()).transpose()?;
    Ok(match (f.number(1)?, f.number(4)?, direction) {
        (Some(to), None, direction) => Some(Expression::Ct { key, direction, to: Register(to) }),
        (None, Some(from), None) => Some(Expression::CtSet { key, from: Register(from) }),
        _ => None,
    })
}

fn bitwise(f: &AttributeIndex<'_>) -> Result<Option<Expression>, DecodeError> {
    // NFT_BITWISE_MASK_XOR; the other operations are shifts and the like.
    let masks = f.number(6)?.is_none_or(|operation| operation == 0);
    let (Some(from), Some(to), Some(mask), Some(xor)) = (f.number(1)?, f.number(2)?, f.get(4), f.get(5)) else {
        return Ok(None);
    };
    let (Some(mask), Some(xor)) = (value(mask)?, value(xor)?) else { return Ok(None) };
    Ok(masks.then_some(Expression::Bitwise { from: Register(from), to: Register(to), mask, xor }))
}

/// `NFTA_DATA_VALUE`
pub(super) fn value(data: Attribute<'_>) -> Result<Option<Vec<u8>>, DecodeError> {
    Ok(AttributeIndex::of("data", data.nested())?.get(1).map(|a| a.value.to_vec()))
}

/// `NFTA_DATA_VERDICT`
pub(super) fn verdict(data: Attribute<'_>) -> Result<Option<VerdictCode>, DecodeError> {
    let Some(attribute) = AttributeIndex::of("data", data.nested())?.get(2) else { return Ok(None) };
    let fields = AttributeIndex::of("a verdict", attribute.nested())?;
    let code = fields.need(1)?.be32()?;
    Ok(Some(match (code, fields.get(2)) {
        (0, None) => VerdictCode::Drop,
        (1, None) => VerdictCode::Accept,
        (code, Some(chain)) if code == VerdictCode::GOTO as u32 => VerdictCode::Goto(chain.text()?.into()),
        (code, Some(chain)) if code == VerdictCode::JUMP as u32 => VerdictCode::Jump(chain.text()?.into()),
        (code, _) => VerdictCode::Foreign(code),
    }))
}
