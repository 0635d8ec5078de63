use ipnet::IpNet;

use super::*;

fn prefix(text: &str) -> IpNet {
    let (address, length) = text.split_once('/').unwrap();
    IpNet::new(address.parse().unwrap(), length.parse().unwrap())
        .unwrap()
        .trunc()
}

fn lookup(table: &AllowedIps<u32>, address: &str) -> Option<u32> {
    table.lookup(address.parse().unwrap()).copied()
}

fn generator(mut state: u64) -> impl FnMut() -> u32 {
    move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    }
}

fn entries(table: &AllowedIps<u32>) -> Vec<(IpNet, u32)> {
    let mut all = Vec::new();
    table.for_each(|prefix, owner| all.push((prefix, *owner)));
    sorted(&all)
}

fn sorted(list: &[(IpNet, u32)]) -> Vec<(IpNet, u32)> {
    let mut list = list.to_vec();
    list.sort();
    list
}

impl<T: Clone> AllowedIps<T> {
    fn check(&self) {
        self.v4.check();
        self.v6.check();
    }
}

#[test]
fn the_longest_prefix_wins() {
    let mut table = AllowedIps::default();
    for (text, owner) in [
        ("0.0.0.0/0", 1),
        ("10.0.0.0/8", 2),
        ("10.1.0.0/16", 3),
        ("10.1.1.1/32", 4),
        ("::/0", 5),
        ("2001:db8::/32", 6),
        ("2001:db8::1/128", 7),
    ] {
        table.insert(prefix(text), owner);
    }
    for (address, owner) in [
        ("192.0.2.1", 1),
        ("10.2.0.1", 2),
        ("10.1.2.3", 3),
        ("10.1.1.1", 4),
        ("10.1.1.2", 3),
        ("fe80::1", 5),
        ("2001:db8::2", 6),
        ("2001:db8::1", 7),
    ] {
        assert_eq!(lookup(&table, address), Some(owner), "{address}");
    }
    table.remove(prefix("10.1.0.0/16"), |o| *o == 2);
    assert_eq!(lookup(&table, "10.1.2.3"), Some(3), "not the owner");
    table.remove(prefix("10.1.0.0/16"), |o| *o == 3);
    assert_eq!(lookup(&table, "10.1.2.3"), Some(2));
    assert_eq!(lookup(&table, "10.1.1.1"), Some(4));
}

/// Compares random operations with a plain list, as the kernel's self-test does.
#[test]
fn agrees_with_a_list() {
    let mut random = generator(11);
    let mut table = AllowedIps::default();
    let mut list: Vec<(IpNet, u32)> = Vec::new();
    for round in 0..4_000 {
        let v6 = random().is_multiple_of(2);
        // Few distinct leading bits, so that prefixes nest and collide.
        let address: IpAddr = if v6 {
            let bits = u128::from(random() & 0xf00f_00ff) << 96 | u128::from(random() & 0xf);
            IpAddr::V6(bits.into())
        } else {
            IpAddr::V4((random() & 0xf00f_000f).into())
        };
        let length = random() % if v6 { 129 } else { 33 };
        let entry = IpNet::new(address, length as u8).unwrap().trunc();
        let owner = random() % 50;
        match random() % 8 {
            0 => {
                table.remove(entry, |o| *o == owner);
                list.retain(|(p, o)| (*p, *o) != (entry, owner));
            }
            1 if round % 16 == 1 => {
                table.retain(|o| *o != owner);
                list.retain(|(_, o)| *o != owner);
            }
            _ => {
                table.insert(entry, owner);
                list.retain(|(p, _)| *p != entry);
                list.push((entry, owner));
            }
        }
        if round % 16 == 0 {
            table.check();
        }
        for _ in 0..20 {
            let near = list.get(random() as usize % list.len().max(1));
            let query = match near.map(|(p, _)| p.addr()) {
                Some(IpAddr::V4(a)) => IpAddr::V4((u32::from(a) ^ (random() & 0x1001_0003)).into()),
                Some(IpAddr::V6(a)) => {
                    IpAddr::V6((u128::from(a) ^ u128::from(random() & 3)).into())
                }
                None => continue,
            };
            let expected = list
                .iter()
                .filter(|(p, _)| p.contains(&query))
                .filter(|(p, _)| p.addr().is_ipv4() == query.is_ipv4())
                .max_by_key(|(p, _)| p.prefix_len())
                .map(|(_, owner)| *owner);
            assert_eq!(
                table.lookup(query).copied(),
                expected,
                "{query} in round {round}"
            );
        }
    }
    assert_eq!(entries(&table), sorted(&list));
    assert!(list.len() > 500);
    for (entry, owner) in list {
        table.remove(entry, |o| *o == owner);
        table.check();
    }
    assert_eq!(entries(&table), []);
}

/// Readers continue with the table that they loaded.
#[test]
fn a_clone_does_not_change_with_its_original() {
    let mut random = generator(5);
    let mut table = AllowedIps::default();
    let mut before = Vec::new();
    for round in 0..300 {
        let address = IpAddr::V4((random() & 0xff03_00ff).into());
        let entry = IpNet::new(address, (random() % 33) as u8).unwrap().trunc();
        match random() % 3 {
            0 => {
                let gone = random() % 20;
                table.retain(|owner| *owner != gone);
            }
            1 => table.remove(entry, |_| true),
            _ => table.insert(entry, round % 20),
        }
        table.check();
        before.push((table.clone(), entries(&table)));
    }
    for (table, expected) in before {
        table.check();
        assert_eq!(entries(&table), expected);
    }
}

/// Every prefix length, including those at node boundaries: of one address, then of two.
#[test]
fn every_length() {
    for (zeros, ones, width) in [
        ("0.0.0.0", "255.255.255.255", 32),
        ("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 128),
    ] {
        let mut table = AllowedIps::default();
        for ends in [zeros, ones] {
            for length in 0..=width {
                let prefix = prefix(&format!("{ends}/{length}"));
                table.insert(prefix, (ends, length));
                table.check();
            }
            assert_eq!(table.lookup(ends.parse().unwrap()), Some(&(ends, width)));
        }
        for length in (0..=width).rev() {
            // Both addresses have the same prefix of length 0.
            let ends = if length == 0 { ones } else { zeros };
            let found = table.lookup(zeros.parse().unwrap());
            assert_eq!(found, Some(&(ends, length)));
            table.remove(prefix(&format!("{zeros}/{length}")), |_| true);
            table.check();
        }
        assert_eq!(table.lookup(zeros.parse().unwrap()), None);
        assert_eq!(table.lookup(ones.parse().unwrap()), Some(&(ones, width)));
    }
}
