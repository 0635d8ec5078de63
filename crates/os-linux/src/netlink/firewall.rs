//! The nf_tables table for a default route through a tunnel.

mod rule;

use std::{
    ffi::{CStr, CString},
    net::IpAddr,
};

use netlink_bindings::nftables::{
    Nfgenmsg, OpGetchainDump, OpGetruleDump, OpGettableDo, Request, TableFlags,
};
#[cfg(any(test, feature = "testing"))]
use netlink_bindings::traits::NetlinkRequest as _;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use taupe_packet::ip::Family;

use self::rule::{Expression, ListedRule};
use super::{
    client::{Netlink, address_family, is_interface_name, parse_family},
    error::Result,
    link::not_a_name,
    socket::{NetlinkSocket, RequestError, Transaction},
};

/// The nf_tables table that `wg-quick` creates for a default route through a tunnel. It drops
/// packets to the tunnel's addresses that arrive through another interface (CVE-2019-14899). It
/// gives replies to the tunnel's own datagrams the same mark as the datagrams, so that a strict
/// reverse-path filter accepts them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Firewall {
    /// The address family.
    pub family: Family,
    /// The table's name, at most 255 bytes.
    pub name: String,
    /// The tunnel's interface, which need not exist.
    pub interface: InterfaceMatch,
    /// The tunnel's addresses of this family.
    pub addresses: Vec<IpAddr>,
    /// The mark of the tunnel's own datagrams.
    pub mark: u32,
}

/// The property by which firewall rules recognise an interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum InterfaceMatch {
    /// `iifname`, as `wg-quick` writes it. After a rename of the interface the rules no longer
    /// match.
    Name(String),
    /// `iif`: the index does not change when the interface is renamed.
    Index(u32),
}

/// The state of a firewall table, compared with a [`Firewall`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirewallState {
    /// Chains and rules are those of the [`Firewall`]. Rules for additional addresses of the tunnel
    /// are accepted.
    Intact,
    /// A chain or rule differs, or the table is disabled (`dormant`).
    Altered,
    /// There is no such table, or it has no rules.
    Missing,
}

impl Netlink {
    /// Returns the nf_tables tables of the families `ip` and `ip6`.
    ///
    /// # Errors
    ///
    /// The kernel's; `EOPNOTSUPP` if it has no nf_tables.
    pub fn firewall_tables(&mut self) -> Result<Vec<(Family, String)>> {
        let request = Request::new().op_gettable_dump(&Nfgenmsg::new());
        self.netfilter()
            .and_then(|socket| socket.dump(&request, |body, all| all.extend(parse(body))))
            .map_err(|error| {
                // The error of netfilter for a subsystem that it does not have.
                let error = if error.is(Errno::INVAL) {
                    no_nf_tables()
                } else {
                    error
                };
                error.context("list the firewall tables")
            })
    }

    /// Compares a firewall with the kernel's table.
    ///
    /// # Errors
    ///
    /// The kernel's; `EOPNOTSUPP` if it has no nf_tables.
    pub fn firewall_state(&mut self, firewall: &Firewall) -> Result<FirewallState> {
        match self.list_firewall(firewall.family, &firewall.name) {
            Err(error) if error.is(Errno::NOENT) => Ok(FirewallState::Missing),
            Err(error) => {
                Err(error.context(format!("list {}", name_of(firewall.family, &firewall.name))))
            }
            Ok(listed) => Ok(listed.compared_with(firewall)),
        }
    }

    fn list_firewall(
        &mut self,
        family: Family,
        name: &str,
    ) -> std::result::Result<Listed, RequestError> {
        let table = table_name(name)?;
        let header = header(family);
        let netfilter = self.netfilter()?;
        let mut is_dormant = false;
        let mut request = Request::new().op_gettable_do(&header);
        request.encode().push_name(&table);
        netfilter.request(&request, |body| is_dormant |= has_dormant_flag(body))?;
        let request = Request::new().op_getchain_dump(&header);
        let chains = netfilter.dump(&request, |body, all| {
            all.extend(chain(body, family, &table));
        })?;
        let mut request = Request::new().op_getrule_dump(&header);
        request.encode().push_table(&table);
        let rules = netfilter.dump(&request, |body, all| {
            all.extend(listed_rule(body, family, &table));
        })?;
        Ok(Listed {
            is_dormant,
            chains,
            rules,
        })
    }

    /// Creates a firewall table with all its chains and rules in one transaction.
    ///
    /// # Errors
    ///
    /// The kernel's; `EOPNOTSUPP` if it has no nf_tables, `ENOENT` if it lacks a part of nf_tables,
    /// `EINVAL` for invalid names and addresses.
    pub fn add_firewall(&mut self, firewall: &Firewall) -> Result<()> {
        transaction(firewall)
            .and_then(|transaction| {
                self.netfilter()?.transact(transaction, |position, error| {
                    if position == 0 {
                        explain_missing_nf_tables(error)
                    } else {
                        explain_missing_expression(error)
                    }
                })
            })
            .map_err(|error| {
                error.context(format!("add {}", name_of(firewall.family, &firewall.name)))
            })
    }

    /// Removes a firewall table with its chains and rules.
    ///
    /// # Errors
    ///
    /// The kernel's; `EOPNOTSUPP` if it has no nf_tables.
    pub fn remove_firewall(&mut self, family: Family, name: &str) -> Result<()> {
        removal(family, name)
            .and_then(|transaction| {
                self.netfilter()?.transact(transaction, |position, error| {
                    if position == 0 {
                        explain_missing_nf_tables(error)
                    } else {
                        error
                    }
                })
            })
            .map_err(|error| error.context(format!("remove {}", name_of(family, name))))
    }

    fn netfilter(&mut self) -> std::result::Result<&mut NetlinkSocket, RequestError> {
        self.netfilter.as_mut().map_err(|errno| match *errno {
            Errno::PROTONOSUPPORT => no_nf_tables(),
            errno => errno.into(),
        })
    }
}

fn name_of(family: Family, name: &str) -> String {
    let family = match family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    };
    format!("the firewall table {family} {name}")
}

fn no_nf_tables() -> RequestError {
    RequestError {
        source: Errno::OPNOTSUPP.into(),
        reason: Some("this kernel has no nf_tables (CONFIG_NF_TABLES)".to_owned()),
    }
}

/// Replaces the error of a transaction that the kernel refused as a whole.
fn explain_missing_nf_tables(error: RequestError) -> RequestError {
    if error.is(Errno::OPNOTSUPP) {
        no_nf_tables()
    } else {
        error
    }
}

/// Replaces the error of one refused request in a transaction.
fn explain_missing_expression(error: RequestError) -> RequestError {
    if error.is(Errno::NOENT) && error.reason.is_none() {
        let reason = "this kernel's nf_tables lacks fib, ct or filter chains (CONFIG_NFT_FIB_IPV4, \
                      CONFIG_NFT_FIB_IPV6, CONFIG_NFT_CT)";
        return RequestError {
            reason: Some(reason.to_owned()),
            ..error
        };
    }
    error
}

/// `NFT_NAME_MAXLEN`, including the terminating zero.
const NAME_LENGTH: usize = 256;

fn table_name(name: &str) -> std::result::Result<CString, RequestError> {
    let name = CString::new(name).ok();
    name.filter(|name| (2..=NAME_LENGTH).contains(&name.as_bytes_with_nul().len()))
        .ok_or_else(|| RequestError {
            source: Errno::INVAL.into(),
            reason: Some("a firewall table's name has 1 to 255 bytes, none of them 0".to_owned()),
        })
}

/// Returns a transaction of the requests that `fill` appends.
fn batch(
    fill: impl FnOnce(&mut Transaction) -> std::result::Result<(), RequestError>,
) -> std::result::Result<Transaction, RequestError> {
    const NFNL_SUBSYS_NFTABLES: u16 = 10;
    let mut header = Nfgenmsg::new();
    header.set_res_id(NFNL_SUBSYS_NFTABLES);
    let mut transaction = Transaction::default();
    transaction.push(&Request::new().op_batch_begin_do(&header))?;
    fill(&mut transaction)?;
    transaction.push(&Request::new().op_batch_end_do(&header))?;
    Ok(transaction)
}

fn removal(family: Family, name: &str) -> std::result::Result<Transaction, RequestError> {
    let name = table_name(name)?;
    let mut request = Request::new().op_deltable_do(&header(family));
    request.encode().push_name(&name);
    batch(|transaction| transaction.push(&request))
}

fn header(family: Family) -> Nfgenmsg {
    let mut header = Nfgenmsg::new();
    // `NFPROTO_IPV4` and `NFPROTO_IPV6` are the address families' numbers.
    header.nfgen_family = address_family(family);
    header
}

/// A chain of the table.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Chain {
    name: &'static str,
    /// `NF_INET_PRE_ROUTING` or `NF_INET_POST_ROUTING`.
    hook: u32,
    priority: i32,
}

const NF_INET_PRE_ROUTING: u32 = 0;
const NF_INET_POST_ROUTING: u32 = 4;
const NF_IP_PRI_RAW: i32 = -300;
const NF_IP_PRI_MANGLE: i32 = -150;

/// `NF_ACCEPT`, the policy of a chain that is created without one.
const ACCEPT: u32 = 1;

static CHAINS: [Chain; 3] = [
    Chain {
        name: "preraw",
        hook: NF_INET_PRE_ROUTING,
        priority: NF_IP_PRI_RAW,
    },
    Chain {
        name: "premangle",
        hook: NF_INET_PRE_ROUTING,
        priority: NF_IP_PRI_MANGLE,
    },
    Chain {
        name: "postmangle",
        hook: NF_INET_POST_ROUTING,
        priority: NF_IP_PRI_MANGLE,
    },
];

fn transaction(firewall: &Firewall) -> std::result::Result<Transaction, RequestError> {
    let Firewall {
        family, addresses, ..
    } = firewall;
    let table = table_name(&firewall.name)?;
    if let InterfaceMatch::Name(name) = &firewall.interface
        && !is_interface_name(name)
    {
        return Err(not_a_name());
    }
    if let Some(other) = addresses
        .iter()
        .find(|&&address| Family::of(address) != *family)
    {
        return Err(RequestError {
            source: Errno::INVAL.into(),
            reason: Some(format!("{other} is not of the table's family")),
        });
    }
    let header = header(*family);
    batch(|transaction| {
        let mut request = Request::new()
            .set_create()
            .set_excl()
            .op_newtable_do(&header);
        request.encode().push_name(&table);
        transaction.push(&request)?;
        for chain in &CHAINS {
            let mut request = Request::new()
                .set_create()
                .set_excl()
                .op_newchain_do(&header);
            request
                .encode()
                .push_table(&table)
                .push_name_bytes(chain.name.as_bytes())
                .push_type(c"filter")
                .nested_hook()
                .push_num(chain.hook)
                .push_priority(chain.priority);
            transaction.push(&request)?;
        }
        for rule in rule::all(firewall) {
            let mut request = Request::new()
                .set_create()
                .set_append()
                .op_newrule_do(&header);
            let attributes = request
                .encode()
                .push_table(&table)
                .push_chain_bytes(rule.chain.as_bytes());
            rule::push(&rule.expressions, attributes.nested_expressions());
            transaction.push(&request)?;
        }
        Ok(())
    })
}

/// A table as the kernel lists it.
struct Listed {
    is_dormant: bool,
    /// The chains of the table that are in [`CHAINS`].
    chains: Vec<&'static Chain>,
    /// The rules of all chains, in order.
    rules: Vec<ListedRule>,
}

impl Listed {
    fn compared_with(&self, firewall: &Firewall) -> FirewallState {
        if self.rules.is_empty() {
            return FirewallState::Missing;
        }
        let has_chains = CHAINS.iter().all(|chain| self.chains.contains(&chain));
        if has_chains && !self.is_dormant && self.has_rules(firewall) {
            FirewallState::Intact
        } else {
            FirewallState::Altered
        }
    }

    fn has_rules(&self, firewall: &Firewall) -> bool {
        let (spoofed, others): (Vec<_>, Vec<_>) = rule::all(firewall)
            .into_iter()
            .partition(|rule| rule.chain == rule::ANTI_SPOOFING_CHAIN);
        // The interface may have had additional addresses when the rules were created.
        let is_anti_spoofing = |listed: Option<&[Expression]>| {
            listed.is_some_and(|listed| {
                rule::address(listed).is_some_and(|address| {
                    let wanted = rule::anti_spoofing_rule(&firewall.interface, address);
                    wanted.expressions == listed
                })
            })
        };
        self.rules_of(rule::ANTI_SPOOFING_CHAIN)
            .all(is_anti_spoofing)
            && spoofed.iter().all(|rule| {
                let mut listed = self.rules_of(rule::ANTI_SPOOFING_CHAIN);
                listed.any(|listed| listed == Some(&*rule.expressions))
            })
            && others
                .iter()
                .all(|rule| self.rules_of(rule.chain).eq([Some(&*rule.expressions)]))
    }

    fn rules_of(&self, chain: &str) -> impl Iterator<Item = Option<&[Expression]>> {
        let rules = self.rules.iter().filter(move |rule| rule.chain == chain);
        rules.map(|rule| rule.expressions.as_deref())
    }
}

pub(super) fn parse(body: &[u8]) -> Option<(Family, String)> {
    let (header, attributes) = OpGettableDo::decode_request(body);
    let name = attributes.get_name().ok()?;
    Some((
        parse_family(header.nfgen_family)?,
        name.to_string_lossy().into_owned(),
    ))
}

/// Returns true if the table is disabled.
pub(super) fn has_dormant_flag(body: &[u8]) -> bool {
    let (_, attributes) = OpGettableDo::decode_request(body);
    let flags = attributes.get_flags().unwrap_or_default();
    flags & TableFlags::Dormant as u32 != 0
}

/// Returns the entry of [`CHAINS`] that equals this chain, if the chain is in this table.
pub(super) fn chain(body: &[u8], of: Family, table: &CStr) -> Option<&'static Chain> {
    let (header, attributes) = OpGetchainDump::decode_request(body);
    let is_in_table =
        parse_family(header.nfgen_family) == Some(of) && attributes.get_table().ok()? == table;
    let hook = attributes.get_hook().ok()?;
    let is_filter = attributes.get_type().ok()? == c"filter";
    let accepts = attributes.get_policy().ok()? == ACCEPT;
    let found = CHAINS.iter().find(|chain| {
        let name = attributes
            .get_name()
            .is_ok_and(|name| name.to_bytes() == chain.name.as_bytes());
        let place = (hook.get_num().ok(), hook.get_priority().ok());
        name && place == (Some(chain.hook), Some(chain.priority))
    });
    found.filter(|_| is_in_table && is_filter && accepts)
}

/// Parses a rule, if it is in this table. Old kernels list the rules of all tables.
pub(super) fn listed_rule(body: &[u8], of: Family, table: &CStr) -> Option<ListedRule> {
    let (header, attributes) = OpGetruleDump::decode_request(body);
    let is_in_table =
        parse_family(header.nfgen_family) == Some(of) && attributes.get_table().ok()? == table;
    let chain = attributes.get_chain().ok()?;
    is_in_table.then(|| ListedRule {
        chain: chain.to_string_lossy().into_owned(),
        expressions: attributes.get_expressions().ok().and_then(rule::read),
    })
}

/// Checks that a listed rule is the same after it has been written and read again. For fuzzers.
#[cfg(any(test, feature = "testing"))]
pub(super) fn check_listed_rule(body: &[u8], of: Family, table: &CStr) {
    let Some(expressions) = listed_rule(body, of, table).and_then(|it| it.expressions) else {
        return;
    };
    let mut request = Request::new().op_newrule_do(&header(of));
    let attributes = request.encode().push_table(table).push_chain(c"chain");
    rule::push(&expressions, attributes.nested_expressions());
    let again = listed_rule(request.payload(), of, table).and_then(|it| it.expressions);
    assert_eq!(again, Some(expressions));
}

/// Returns the messages that create a table. For fuzzers.
#[cfg(any(test, feature = "testing"))]
pub(super) fn messages(firewall: &Firewall) -> Vec<u8> {
    let transaction = transaction(firewall).ok();
    transaction.map_or_else(Vec::new, |transaction| transaction.finish(1))
}
