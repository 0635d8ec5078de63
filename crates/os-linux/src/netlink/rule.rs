//! Routing policy rules, which select the routing table for a packet.

use ipnet::IpNet;
use netlink_bindings::rt_rule::{FibRuleAttrs, FibRuleHdr, OpNewruleDo, PushFibRuleAttrs, Request};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use taupe_packet::ip::Family;

use super::{
    client::{Netlink, address_family, parse_family},
    error::{NetlinkError, Result},
    socket::RequestError,
};

/// A routing policy rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rule {
    /// The address family.
    pub family: Family,
    /// Rules with lower values apply first.
    pub priority: u32,
    /// The table; 0 for a rule with another action.
    pub table: u32,
    /// The source network that the packet must have, without host bits.
    #[serde(default)]
    pub source: Option<IpNet>,
    /// The firewall mark that the packet must have.
    pub mark: Option<Mark>,
    /// True if the rule applies to packets that do *not* match its selectors.
    pub invert: bool,
    /// Ignore results whose prefix length in bits is this or shorter.
    pub suppress_prefix_length: Option<u32>,
    /// The creator of the rule (`RTPROT_*`); `ip` leaves it at 0.
    pub protocol: u8,
    /// True if the rule has selectors or an action that this type cannot represent. Such a rule can
    /// be neither added nor removed here.
    #[serde(rename = "more")]
    pub is_incomplete: bool,
}

impl Rule {
    /// Returns a rule for all packets, as a base for the others.
    const fn all(family: Family, priority: u32, table: u32) -> Self {
        Self {
            family,
            priority,
            table,
            source: None,
            mark: None,
            invert: false,
            suppress_prefix_length: None,
            protocol: 0,
            is_incomplete: false,
        }
    }

    /// Returns the rule that `ip rule add not fwmark MARK table TABLE` creates.
    #[must_use]
    pub const fn not_marked(family: Family, priority: u32, mark: u32, table: u32) -> Self {
        Self {
            invert: true,
            ..Self::marked(family, priority, mark, u32::MAX, table)
        }
    }

    /// Returns the rule that `ip rule add fwmark MARK/MASK table TABLE` creates.
    #[must_use]
    pub const fn marked(family: Family, priority: u32, mark: u32, mask: u32, table: u32) -> Self {
        Self {
            mark: Some(Mark { value: mark, mask }),
            ..Self::all(family, priority, table)
        }
    }

    /// Returns the rule that `ip rule add from SOURCE table TABLE` creates.
    #[must_use]
    pub fn from(source: IpNet, priority: u32, table: u32) -> Self {
        Self {
            source: Some(source.trunc()),
            ..Self::all(Family::of(source.addr()), priority, table)
        }
    }

    /// Returns the rule that `ip rule add table TABLE suppress_prefixlength LENGTH` creates.
    #[must_use]
    pub const fn suppressing(family: Family, priority: u32, length: u32, table: u32) -> Self {
        Self {
            suppress_prefix_length: Some(length),
            ..Self::all(family, priority, table)
        }
    }

    /// Returns the priority that the kernel gives to a new rule that requests none: one below that
    /// of the family's second rule, the first being the one for the local table. `rules` is the
    /// result of [`Netlink::rules`].
    #[must_use]
    pub fn next_priority(rules: &[Self], family: Family) -> u32 {
        let mut priorities: Vec<u32> = rules
            .iter()
            .filter(|rule| rule.family == family)
            .map(|rule| rule.priority)
            .collect();
        priorities.sort_unstable();
        priorities
            .get(1)
            .map_or(0, |second| second.saturating_sub(1))
    }
}

/// A firewall mark with its mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mark {
    /// The mark.
    pub value: u32,
    /// The bits to compare.
    pub mask: u32,
}

impl Netlink {
    /// Returns the rules of both families, each family's in order of priority.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn rules(&mut self) -> Result<Vec<Rule>> {
        let mut rules = Vec::new();
        for family in Family::ALL {
            let mut header = FibRuleHdr::new();
            header.family = address_family(family);
            let request = Request::new().op_getrule_dump(&header);
            let read = |body: &[u8], all: &mut Vec<Rule>| {
                all.extend(parse(body).filter(|rule| rule.family == family));
            };
            match self.rtnetlink.dump(&request, read) {
                Ok(listed) => rules.extend(listed),
                // The kernel lacks this family or policy routing.
                Err(error) if error.is(Errno::AFNOSUPPORT) || error.is(Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error.context("list the routing rules")),
            }
        }
        Ok(rules)
    }

    /// Adds a rule.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn add_rule(&mut self, rule: &Rule) -> Result<()> {
        let failed = |error: RequestError| error.context(format!("add {}", name_of(rule)));
        let header = header(rule).map_err(failed)?;
        let mut request = Request::new()
            .set_create()
            .set_excl()
            .op_newrule_do(&header);
        push(request.encode(), rule);
        self.rtnetlink.request(&request, |_| {}).map_err(failed)
    }

    /// Removes a rule.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn remove_rule(&mut self, rule: &Rule) -> Result<()> {
        let failed = |error: RequestError| error.context(format!("remove {}", name_of(rule)));
        let header = header(rule).map_err(failed)?;
        // The kernel ignores selectors that a deletion request omits, so it would also remove a
        // rule with additional selectors.
        let same = |listed: &Rule| {
            // Before Linux 4.17 the kernel does not report the creator of a rule.
            let protocol = listed.protocol;
            *listed == Rule { protocol, ..*rule }
        };
        let listed = self.rules().map_err(|error| NetlinkError {
            what: format!("remove {}", name_of(rule)),
            ..error
        })?;
        if !listed.iter().any(same) {
            return Err(failed(Errno::NOENT.into()));
        }
        let mut request = Request::new().op_delrule_do(&header);
        push(request.encode(), rule);
        self.rtnetlink.request(&request, |_| {}).map_err(failed)
    }
}

fn name_of(rule: &Rule) -> String {
    format!(
        "the {} routing rule of priority {} for table {}",
        rule.family, rule.priority, rule.table
    )
}

const FR_ACT_TO_TBL: u8 = 1;
const FIB_RULE_INVERT: u32 = 2;

pub(super) fn header(rule: &Rule) -> std::result::Result<FibRuleHdr, RequestError> {
    if rule.is_incomplete {
        return Err(RequestError {
            source: Errno::INVAL.into(),
            reason: Some("it has selectors or an action that are not known here".to_owned()),
        });
    }
    let mut header = FibRuleHdr::new();
    header.family = address_family(rule.family);
    header.action = FR_ACT_TO_TBL;
    header.flags = if rule.invert { FIB_RULE_INVERT } else { 0 };
    header.src_len = rule.source.map_or(0, |source| source.prefix_len());
    Ok(header)
}

pub(super) fn push(mut attributes: PushFibRuleAttrs<&mut Vec<u8>>, rule: &Rule) {
    attributes = attributes
        .push_priority(rule.priority)
        .push_table(rule.table)
        .push_protocol(rule.protocol);
    if let Some(source) = rule.source {
        attributes = attributes.push_src(source.addr());
    }
    if let Some(mark) = rule.mark {
        attributes = attributes.push_fwmark(mark.value).push_fwmask(mark.mask);
    }
    if let Some(length) = rule.suppress_prefix_length {
        attributes.push_suppress_prefixlen(length);
    }
}

pub(super) fn parse(body: &[u8]) -> Option<Rule> {
    let (header, attributes) = OpNewruleDo::decode_request(body);
    let mut rule = Rule {
        family: parse_family(header.family)?,
        priority: 0,
        table: header.table.into(),
        source: None,
        mark: None,
        invert: header.flags & FIB_RULE_INVERT != 0,
        suppress_prefix_length: None,
        protocol: 0,
        is_incomplete: header.action != FR_ACT_TO_TBL || header.tos != 0 || header.dst_len != 0,
    };
    let (mut value, mut mask) = (None, None);
    for attribute in attributes {
        match attribute {
            Ok(FibRuleAttrs::Priority(priority)) => rule.priority = priority,
            Ok(FibRuleAttrs::Src(source)) => {
                rule.source = Some(IpNet::new(source, header.src_len).ok()?);
            }
            Ok(FibRuleAttrs::Table(table)) => rule.table = table,
            Ok(FibRuleAttrs::Fwmark(mark)) => value = Some(mark),
            Ok(FibRuleAttrs::Fwmask(bits)) => mask = Some(bits),
            Ok(FibRuleAttrs::Protocol(protocol)) => rule.protocol = protocol,
            // All ones mean no limit.
            Ok(FibRuleAttrs::SuppressPrefixlen(length)) => {
                rule.suppress_prefix_length = Some(length).filter(|&length| length != u32::MAX);
            }
            Ok(FibRuleAttrs::Pad(_)) => {}
            _ => rule.is_incomplete = true,
        }
    }
    if value.is_some() || mask.is_some() {
        rule.mark = Some(Mark {
            value: value.unwrap_or(0),
            mask: mask.unwrap_or(u32::MAX),
        });
    }
    Some(rule)
}
