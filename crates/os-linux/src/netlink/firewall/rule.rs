//! Rules of the table: as data, as the kernel accepts them, and as it lists them.
//!
//! Expressions work on registers of 16 bytes; these rules need only one. Attributes are big-endian.
//! Register contents are in the kernel's representation: marks, interface numbers and address types
//! in host order, addresses in network order.

use std::net::IpAddr;

use netlink_bindings::nftables::{
    CmpOps, CtKeys, ExprOps, FibFlags, IterableExprAttrs, IterableExprListAttrs, MetaKeys,
    PayloadBase, PushExprListAttrs, PushRuleAttrs, Registers, VerdictCode,
};

use crate::netlink::{Firewall, InterfaceMatch};

/// The chain of the anti-spoofing rules, one rule for each address.
pub(super) const ANTI_SPOOFING_CHAIN: &str = "preraw";

const REGISTER: u32 = Registers::Reg1 as u32;

/// The lookup result "type of address".
const NFT_FIB_RESULT_ADDRTYPE: u32 = 3;

/// A rule to add.
pub(super) struct ChainRule {
    pub(super) chain: &'static str,
    pub(super) expressions: Vec<Expression>,
}

/// A rule that the kernel lists.
pub(in crate::netlink) struct ListedRule {
    pub(super) chain: String,
    /// `None` if one of them cannot be represented as [`Expression`].
    pub(super) expressions: Option<Vec<Expression>>,
}

/// An expression of a rule. If a comparison fails, the rule ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::netlink) enum Expression {
    /// Loads a property of the packet (`NFT_META_*`).
    LoadMeta(u32),
    /// Sets the property.
    StoreMeta(u32),
    /// Loads a property of the packet's connection (`NFT_CT_*`).
    LoadConnection(u32),
    /// Sets the property.
    StoreConnection(u32),
    /// Loads bytes of the network header.
    LoadHeader { offset: u32, length: u32 },
    /// Loads the type of the packet's source address.
    LoadSourceType,
    /// Compares the loaded value (`NFT_CMP_*`).
    Compare { how: u32, value: Vec<u8> },
    /// Ends the evaluation of the packet (`NF_*`).
    Verdict(u32),
}

/// Returns all rules of a firewall, ordered by chain.
pub(super) fn all(firewall: &Firewall) -> Vec<ChainRule> {
    let spoofed = firewall
        .addresses
        .iter()
        .map(|address| anti_spoofing_rule(&firewall.interface, *address));
    let others = [save_mark_rule(firewall.mark), restore_mark_rule()];
    spoofed.chain(others).collect()
}

/// `iif != INTERFACE ip daddr ADDRESS fib saddr type != local drop`
pub(super) fn anti_spoofing_rule(interface: &InterfaceMatch, address: IpAddr) -> ChainRule {
    let (key, value) = match interface {
        InterfaceMatch::Name(name) => {
            let mut padded = name.as_bytes().to_vec();
            padded.resize(libc::IFNAMSIZ, 0);
            (MetaKeys::Iifname, padded)
        }
        InterfaceMatch::Index(index) => (MetaKeys::Iif, index.to_ne_bytes().to_vec()),
    };
    let (offset, octets) = match address {
        IpAddr::V4(ip) => (DESTINATION_V4, ip.octets().to_vec()),
        IpAddr::V6(ip) => (DESTINATION_V6, ip.octets().to_vec()),
    };
    let length = octets.len() as u32;
    let local = u32::from(libc::RTN_LOCAL).to_ne_bytes();
    ChainRule {
        chain: ANTI_SPOOFING_CHAIN,
        expressions: vec![
            Expression::LoadMeta(key as u32),
            compare(CmpOps::Neq, value),
            Expression::LoadHeader { offset, length },
            compare(CmpOps::Eq, octets),
            Expression::LoadSourceType,
            compare(CmpOps::Neq, local),
            Expression::Verdict(VerdictCode::Drop as u32),
        ],
    }
}

/// The offsets of the destination address in the network headers.
const DESTINATION_V4: u32 = 16;
const DESTINATION_V6: u32 = 24;

/// Returns the address of an anti-spoofing rule, if the rule has one at the expected position.
pub(super) fn address(rule: &[Expression]) -> Option<IpAddr> {
    let [_, _, _, Expression::Compare { value, .. }, ..] = rule else {
        return None;
    };
    let v4 = || <[u8; 4]>::try_from(&**value).map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(&**value).map(IpAddr::from);
    v4().or_else(|_| v6()).ok()
}

/// `meta l4proto udp mark MARK ct mark set mark`
fn save_mark_rule(mark: u32) -> ChainRule {
    ChainRule {
        chain: "postmangle",
        expressions: vec![
            Expression::LoadMeta(MetaKeys::L4Proto as u32),
            compare(CmpOps::Eq, [libc::IPPROTO_UDP as u8]),
            Expression::LoadMeta(MetaKeys::Mark as u32),
            compare(CmpOps::Eq, mark.to_ne_bytes()),
            Expression::LoadMeta(MetaKeys::Mark as u32),
            Expression::StoreConnection(CtKeys::Mark as u32),
        ],
    }
}

/// `meta l4proto udp meta mark set ct mark`
fn restore_mark_rule() -> ChainRule {
    ChainRule {
        chain: "premangle",
        expressions: vec![
            Expression::LoadMeta(MetaKeys::L4Proto as u32),
            compare(CmpOps::Eq, [libc::IPPROTO_UDP as u8]),
            Expression::LoadConnection(CtKeys::Mark as u32),
            Expression::StoreMeta(MetaKeys::Mark as u32),
        ],
    }
}

fn compare(how: CmpOps, value: impl Into<Vec<u8>>) -> Expression {
    Expression::Compare {
        how: how as u32,
        value: value.into(),
    }
}

/// Encodes expressions for the kernel.
pub(super) fn push(
    expressions: &[Expression],
    mut list: PushExprListAttrs<PushRuleAttrs<&mut Vec<u8>>>,
) {
    for expression in expressions {
        let element = list.nested_elem();
        list = match expression {
            Expression::LoadMeta(key) => {
                let meta = element.nested_data_meta();
                let meta = meta.push_key(*key).push_dreg(REGISTER);
                meta.end_nested().end_nested()
            }
            Expression::StoreMeta(key) => {
                let meta = element.nested_data_meta();
                let meta = meta.push_key(*key).push_sreg(REGISTER);
                meta.end_nested().end_nested()
            }
            Expression::LoadConnection(key) => {
                let ct = element.nested_data_ct();
                let ct = ct.push_key(*key).push_dreg(REGISTER);
                ct.end_nested().end_nested()
            }
            Expression::StoreConnection(key) => {
                let ct = element.nested_data_ct();
                let ct = ct.push_key(*key).push_sreg(REGISTER);
                ct.end_nested().end_nested()
            }
            Expression::LoadHeader { offset, length } => {
                let payload = element.nested_data_payload();
                let payload = payload
                    .push_dreg(REGISTER)
                    .push_base(PayloadBase::NetworkHeader as u32)
                    .push_offset(*offset)
                    .push_len(*length);
                payload.end_nested().end_nested()
            }
            Expression::LoadSourceType => {
                let fib = element.nested_data_fib();
                let fib = fib
                    .push_dreg(REGISTER)
                    .push_result(NFT_FIB_RESULT_ADDRTYPE)
                    .push_flags(FibFlags::Saddr as u32);
                fib.end_nested().end_nested()
            }
            Expression::Compare { how, value } => {
                let cmp = element.nested_data_cmp();
                let cmp = cmp.push_sreg(REGISTER).push_op(*how);
                let cmp = cmp.nested_data().push_value(value).end_nested();
                cmp.end_nested().end_nested()
            }
            Expression::Verdict(code) => {
                let immediate = element.nested_data_immediate();
                let immediate = immediate.push_dreg(Registers::RegVerdict as u32);
                let verdict = immediate.nested_data().nested_verdict();
                let data = verdict.push_code(*code).end_nested();
                data.end_nested().end_nested().end_nested()
            }
        };
    }
}

/// Parses the expressions of a listed rule; `None` if one of them cannot be represented as
/// [`Expression`].
pub(super) fn read(list: IterableExprListAttrs<'_>) -> Option<Vec<Expression>> {
    list.get_elem()
        .map(|element| expression(&element))
        .collect()
}

fn expression(element: &IterableExprAttrs<'_>) -> Option<Expression> {
    let is_ours = |register: u32| (register == REGISTER).then_some(());
    Some(match element.get_data().ok()? {
        ExprOps::Meta(meta) => {
            let key = meta.get_key().ok()?;
            if let Ok(register) = meta.get_sreg() {
                is_ours(register)?;
                Expression::StoreMeta(key)
            } else {
                is_ours(meta.get_dreg().ok()?)?;
                Expression::LoadMeta(key)
            }
        }
        ExprOps::Ct(ct) => {
            let key = ct.get_key().ok()?;
            if let Ok(register) = ct.get_sreg() {
                is_ours(register)?;
                Expression::StoreConnection(key)
            } else {
                is_ours(ct.get_dreg().ok()?)?;
                Expression::LoadConnection(key)
            }
        }
        ExprOps::Payload(payload) => {
            is_ours(payload.get_dreg().ok()?)?;
            let base = payload.get_base().ok()?;
            (base == PayloadBase::NetworkHeader as u32).then_some(())?;
            Expression::LoadHeader {
                offset: payload.get_offset().ok()?,
                length: payload.get_len().ok()?,
            }
        }
        ExprOps::Fib(fib) => {
            is_ours(fib.get_dreg().ok()?)?;
            let lookup = (fib.get_result().ok()?, fib.get_flags().ok()?);
            (lookup == (NFT_FIB_RESULT_ADDRTYPE, FibFlags::Saddr as u32)).then_some(())?;
            Expression::LoadSourceType
        }
        ExprOps::Cmp(cmp) => {
            is_ours(cmp.get_sreg().ok()?)?;
            Expression::Compare {
                how: cmp.get_op().ok()?,
                value: cmp.get_data().ok()?.get_value().ok()?.to_vec(),
            }
        }
        ExprOps::Immediate(immediate) => {
            let register = immediate.get_dreg().ok()?;
            (register == Registers::RegVerdict as u32).then_some(())?;
            let verdict = immediate.get_data().ok()?.get_verdict().ok()?;
            Expression::Verdict(verdict.get_code().ok()?)
        }
        _ => return None,
    })
}
