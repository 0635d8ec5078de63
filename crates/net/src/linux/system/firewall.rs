//! The nf_tables table of a default route by a tunnel.
//!
//! Expressions work on registers of 16 bytes, of which one is enough here.
//! Attributes are big-endian, what is in registers is as the kernel keeps it:
//! marks and address types in the machine's order, addresses in the network's.

use std::{
    ffi::{CStr, CString},
    net::IpAddr,
};

use netlink_bindings::nftables::{
    CmpOps, CtKeys, FibFlags, MetaKeys, Nfgenmsg, OpGetruleDump, OpGettableDo, PayloadBase,
    PushExprListAttrs, PushRuleAttrs, Registers, Request, VerdictCode,
};
use rustix::io::Errno;

use super::{
    Result, System, family, is_interface_name,
    link::not_a_name,
    number,
    socket::{Refusal, Socket, Transaction},
};
use crate::system::{Family, Firewall};

impl System {
    /// The nf_tables tables of the families `ip` and `ip6`.
    ///
    /// # Errors
    ///
    /// The kernel's; `EOPNOTSUPP` when it has no nf_tables.
    pub fn firewall_tables(&mut self) -> Result<Vec<(Family, String)>> {
        let request = Request::new().op_gettable_dump(&Nfgenmsg::new());
        self.netfilter()
            .and_then(|socket| socket.list(&request, |body, all| all.extend(parse(body))))
            .map_err(|refusal| {
                // What netfilter says of a part that it does not have.
                let refusal = if refusal.is(Errno::INVAL) {
                    no_nf_tables()
                } else {
                    refusal
                };
                refusal.of("list the firewall tables")
            })
    }

    /// The chain of each rule in a table of the families `ip` and `ip6`; empty
    /// if there is no such table.
    ///
    /// # Errors
    ///
    /// The kernel's; `EOPNOTSUPP` when it has no nf_tables.
    pub fn firewall_rules(&mut self, family: Family, name: &str) -> Result<Vec<String>> {
        let listed = table_name(name).and_then(|table| {
            let mut request = Request::new().op_getrule_dump(&header(family));
            request.encode().push_table(&table);
            let netfilter = self.netfilter()?;
            netfilter.list(&request, |body, all| {
                all.extend(chain_of(body, family, &table));
            })
        });
        match listed {
            Err(refusal) if refusal.is(Errno::NOENT) => Ok(Vec::new()),
            listed => {
                listed.map_err(|refusal| refusal.of(format!("list {}", name_of(family, name))))
            }
        }
    }

    /// Makes a firewall table with all that is in it, or nothing.
    ///
    /// # Errors
    ///
    /// The kernel's; `EOPNOTSUPP` when it has no nf_tables, `ENOENT` when it
    /// lacks a part of it, `EINVAL` for names and addresses that cannot be.
    pub fn add_firewall(&mut self, firewall: &Firewall) -> Result<()> {
        transaction(firewall)
            .and_then(|transaction| {
                self.netfilter()?.transact(transaction, |place, refusal| {
                    if place == 0 {
                        without_nf_tables(refusal)
                    } else {
                        without_a_part(refusal)
                    }
                })
            })
            .map_err(|refusal| {
                refusal.of(format!("add {}", name_of(firewall.family, &firewall.name)))
            })
    }

    /// Removes a firewall table with all that is in it.
    ///
    /// # Errors
    ///
    /// The kernel's; `EOPNOTSUPP` when it has no nf_tables.
    pub fn remove_firewall(&mut self, family: Family, name: &str) -> Result<()> {
        removal(family, name)
            .and_then(|transaction| {
                self.netfilter()?.transact(transaction, |place, refusal| {
                    if place == 0 {
                        without_nf_tables(refusal)
                    } else {
                        refusal
                    }
                })
            })
            .map_err(|refusal| refusal.of(format!("remove {}", name_of(family, name))))
    }

    fn netfilter(&mut self) -> std::result::Result<&mut Socket, Refusal> {
        self.netfilter.as_mut().map_err(|errno| match *errno {
            Errno::PROTONOSUPPORT => no_nf_tables(),
            errno => errno.into(),
        })
    }
}

fn name_of(family: Family, name: &str) -> String {
    let family = match family {
        Family::Ipv4 => "ip",
        Family::Ipv6 => "ip6",
    };
    format!("the firewall table {family} {name}")
}

fn no_nf_tables() -> Refusal {
    Refusal {
        source: Errno::OPNOTSUPP.into(),
        reason: Some("this kernel has no nf_tables (CONFIG_NF_TABLES)".to_owned()),
    }
}

/// The whole transaction was refused.
fn without_nf_tables(refusal: Refusal) -> Refusal {
    if refusal.is(Errno::OPNOTSUPP) {
        no_nf_tables()
    } else {
        refusal
    }
}

/// One of its requests was refused.
fn without_a_part(refusal: Refusal) -> Refusal {
    if refusal.is(Errno::NOENT) && refusal.reason.is_none() {
        let reason = "this kernel's nf_tables lacks fib, ct or filter chains (CONFIG_NFT_FIB_IPV4, \
                      CONFIG_NFT_FIB_IPV6, CONFIG_NFT_CT)";
        return Refusal {
            reason: Some(reason.to_owned()),
            ..refusal
        };
    }
    refusal
}

/// `NFT_NAME_MAXLEN` with the zero at its end.
const NAME_LENGTH: usize = 256;

fn table_name(name: &str) -> std::result::Result<CString, Refusal> {
    let name = CString::new(name).ok();
    name.filter(|name| (2..=NAME_LENGTH).contains(&name.as_bytes_with_nul().len()))
        .ok_or_else(|| Refusal {
            source: Errno::INVAL.into(),
            reason: Some("a firewall table's name has 1 to 255 bytes, none of them 0".to_owned()),
        })
}

/// Encloses what `fill` appends.
fn enclosed(
    fill: impl FnOnce(&mut Transaction) -> std::result::Result<(), Refusal>,
) -> std::result::Result<Transaction, Refusal> {
    const NFNL_SUBSYS_NFTABLES: u16 = 10;
    let mut header = Nfgenmsg::new();
    header.set_res_id(NFNL_SUBSYS_NFTABLES);
    let mut transaction = Transaction::default();
    transaction.push(&Request::new().op_batch_begin_do(&header))?;
    fill(&mut transaction)?;
    transaction.push(&Request::new().op_batch_end_do(&header))?;
    Ok(transaction)
}

fn removal(family: Family, name: &str) -> std::result::Result<Transaction, Refusal> {
    let name = table_name(name)?;
    let mut request = Request::new().op_deltable_do(&header(family));
    request.encode().push_name(&name);
    enclosed(|transaction| transaction.push(&request))
}

fn header(family: Family) -> Nfgenmsg {
    let mut header = Nfgenmsg::new();
    // `NFPROTO_IPV4` and `NFPROTO_IPV6` are the address families' numbers.
    header.nfgen_family = number(family);
    header
}

fn transaction(firewall: &Firewall) -> std::result::Result<Transaction, Refusal> {
    const NF_INET_PRE_ROUTING: u32 = 0;
    const NF_INET_POST_ROUTING: u32 = 4;
    const NF_IP_PRI_RAW: i32 = -300;
    const NF_IP_PRI_MANGLE: i32 = -150;

    let Firewall {
        family,
        interface,
        addresses,
        ..
    } = firewall;
    let table = table_name(&firewall.name)?;
    if !is_interface_name(interface) {
        return Err(not_a_name());
    }
    if let Some(stranger) = addresses
        .iter()
        .find(|&&address| Family::of_address(address) != *family)
    {
        return Err(Refusal {
            source: Errno::INVAL.into(),
            reason: Some(format!("{stranger} is not of the table's family")),
        });
    }

    let header = header(*family);
    let chain = |name: &str, hook, priority| {
        let mut request = Request::new()
            .set_create()
            .set_excl()
            .op_newchain_do(&header);
        request
            .encode()
            .push_table(&table)
            .push_name_bytes(name.as_bytes())
            .push_type(c"filter")
            .nested_hook()
            .push_num(hook)
            .push_priority(priority);
        request
    };
    let rule = |chain: &str, expressions: &dyn Fn(Expressions<'_>)| {
        let mut request = Request::new()
            .set_create()
            .set_append()
            .op_newrule_do(&header);
        let attributes = request
            .encode()
            .push_table(&table)
            .push_chain_bytes(chain.as_bytes());
        expressions(Expressions(attributes.nested_expressions()));
        request
    };

    enclosed(|transaction| {
        let mut request = Request::new()
            .set_create()
            .set_excl()
            .op_newtable_do(&header);
        request.encode().push_name(&table);
        transaction.push(&request)?;
        transaction.push(&chain("preraw", NF_INET_PRE_ROUTING, NF_IP_PRI_RAW))?;
        transaction.push(&chain("premangle", NF_INET_PRE_ROUTING, NF_IP_PRI_MANGLE))?;
        transaction.push(&chain("postmangle", NF_INET_POST_ROUTING, NF_IP_PRI_MANGLE))?;
        for &address in addresses {
            transaction.push(&rule("preraw", &|expressions| {
                expressions
                    .interface_is_not(interface)
                    .destination_is(address)
                    .source_is_not_local()
                    .drop_packet();
            }))?;
        }
        transaction.push(&rule("postmangle", &|expressions| {
            expressions
                .protocol_is_udp()
                .mark_is(firewall.mark)
                .save_mark_in_connection();
        }))?;
        transaction.push(&rule("premangle", &|expressions| {
            expressions.protocol_is_udp().restore_mark_from_connection();
        }))
    })
}

/// The expressions of a rule, each of which a packet has to meet for the next.
struct Expressions<'a>(PushExprListAttrs<PushRuleAttrs<&'a mut Vec<u8>>>);

impl Expressions<'_> {
    const REGISTER: u32 = Registers::Reg1 as u32;

    /// `iifname != NAME`
    fn interface_is_not(self, name: &str) -> Self {
        let mut padded = name.as_bytes().to_vec();
        padded.resize(libc::IFNAMSIZ, 0);
        self.load_meta(MetaKeys::Iifname)
            .compare(CmpOps::Neq, &padded)
    }

    /// `ip daddr ADDRESS`
    fn destination_is(self, address: IpAddr) -> Self {
        let (offset, octets) = match address {
            IpAddr::V4(ip) => (16, ip.octets().to_vec()),
            IpAddr::V6(ip) => (24, ip.octets().to_vec()),
        };
        let payload = self.0.nested_elem().nested_data_payload();
        let payload = payload
            .push_dreg(Self::REGISTER)
            .push_base(PayloadBase::NetworkHeader as u32)
            .push_offset(offset)
            .push_len(octets.len() as u32);
        Self(payload.end_nested().end_nested()).compare(CmpOps::Eq, &octets)
    }

    /// `fib saddr type != local`
    fn source_is_not_local(self) -> Self {
        const NFT_FIB_RESULT_ADDRTYPE: u32 = 3;
        let fib = self.0.nested_elem().nested_data_fib();
        let fib = fib
            .push_dreg(Self::REGISTER)
            .push_result(NFT_FIB_RESULT_ADDRTYPE)
            .push_flags(FibFlags::Saddr as u32);
        let local = u32::from(libc::RTN_LOCAL).to_ne_bytes();
        Self(fib.end_nested().end_nested()).compare(CmpOps::Neq, &local)
    }

    /// `drop`
    fn drop_packet(self) {
        let immediate = self.0.nested_elem().nested_data_immediate();
        immediate
            .push_dreg(Registers::RegVerdict as u32)
            .nested_data()
            .nested_verdict()
            .push_code(VerdictCode::Drop as u32);
    }

    /// `meta l4proto udp`
    fn protocol_is_udp(self) -> Self {
        self.load_meta(MetaKeys::L4Proto)
            .compare(CmpOps::Eq, &[libc::IPPROTO_UDP as u8])
    }

    /// `meta mark MARK`
    fn mark_is(self, mark: u32) -> Self {
        self.load_meta(MetaKeys::Mark)
            .compare(CmpOps::Eq, &mark.to_ne_bytes())
    }

    /// `ct mark set meta mark`
    fn save_mark_in_connection(self) {
        let Self(list) = self.load_meta(MetaKeys::Mark);
        let ct = list.nested_elem().nested_data_ct();
        ct.push_key(CtKeys::Mark as u32).push_sreg(Self::REGISTER);
    }

    /// `meta mark set ct mark`
    fn restore_mark_from_connection(self) {
        let ct = self.0.nested_elem().nested_data_ct();
        let ct = ct.push_key(CtKeys::Mark as u32).push_dreg(Self::REGISTER);
        let meta = ct
            .end_nested()
            .end_nested()
            .nested_elem()
            .nested_data_meta();
        meta.push_key(MetaKeys::Mark as u32)
            .push_sreg(Self::REGISTER);
    }

    fn load_meta(self, key: MetaKeys) -> Self {
        let meta = self.0.nested_elem().nested_data_meta();
        let meta = meta.push_key(key as u32).push_dreg(Self::REGISTER);
        Self(meta.end_nested().end_nested())
    }

    fn compare(self, how: CmpOps, value: &[u8]) -> Self {
        let cmp = self.0.nested_elem().nested_data_cmp();
        let cmp = cmp.push_sreg(Self::REGISTER).push_op(how as u32);
        let cmp = cmp.nested_data().push_value(value).end_nested();
        Self(cmp.end_nested().end_nested())
    }
}

pub(super) fn parse(body: &[u8]) -> Option<(Family, String)> {
    let (header, attributes) = OpGettableDo::decode_request(body);
    let name = attributes.get_name().ok()?;
    Some((
        family(header.nfgen_family)?,
        name.to_string_lossy().into_owned(),
    ))
}

/// The chain of a rule, if it is in this table. Old kernels list all tables.
fn chain_of(body: &[u8], of: Family, table: &CStr) -> Option<String> {
    let (header, attributes) = OpGetruleDump::decode_request(body);
    let is_in_table =
        family(header.nfgen_family) == Some(of) && attributes.get_table().ok()? == table;
    let chain = attributes.get_chain().ok()?;
    is_in_table.then(|| chain.to_string_lossy().into_owned())
}
