//! DNS queries for the addresses of endpoints. The system's resolver service sends them. If it is
//! selected, its queries would wait for the tunnel, which waits for their replies.

/// The header of a message (RFC 1035 §4.1.1).
const HEADER: usize = 12;

/// Query types A and AAAA, and class IN.
const A: u16 = 1;
const AAAA: u16 = 28;
const IN: u16 = 1;

/// Returns true if a message is a query for an address of one of these hosts and contains nothing
/// else. A query that passes can therefore carry no other information.
pub(super) fn is_query_for(message: &[u8], hosts: &[Box<str>]) -> bool {
    let Some((header, question)) = message.split_at_checked(HEADER) else {
        return false;
    };
    // A standard query with any recursion flags and exactly one question.
    let is_one =
        header[2] & 0xfe == 0 && header[3] & !0x30 == 0 && header[4..] == [0, 1, 0, 0, 0, 0, 0, 0];
    is_one && hosts.iter().any(|host| is_dns_query(question, host))
}

fn is_dns_query(mut rest: &[u8], host: &str) -> bool {
    let host = host.trim_end_matches('.');
    for label in host.split('.') {
        let Some((&length, after)) = rest.split_first() else {
            return false;
        };
        let Some((name, after)) = after.split_at_checked(length.into()) else {
            return false;
        };
        if !name.eq_ignore_ascii_case(label.as_bytes()) {
            return false;
        }
        rest = after;
    }
    let [0, a, b, c, d] = *rest else {
        return false;
    };
    let kind = u16::from_be_bytes([a, b]);
    matches!(kind, A | AAAA) && u16::from_be_bytes([c, d]) == IN
}

#[cfg(test)]
mod tests {
    use super::is_query_for;

    fn question(labels: &[&str], kind: u16) -> Vec<u8> {
        let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in labels {
            message.push(label.len() as u8);
            message.extend(label.as_bytes());
        }
        message.push(0);
        message.extend(kind.to_be_bytes());
        message.extend([0, 1]);
        message
    }

    #[test]
    fn only_a_question_for_the_host_and_nothing_else_is_one() {
        let hosts: [Box<str>; 2] = ["other.example".into(), "vpn.example.org".into()];
        let good = question(&["VPN", "example", "org"], 1);
        assert!(is_query_for(&good, &hosts));
        assert!(is_query_for(
            &question(&["vpn", "example", "org"], 28),
            &hosts
        ));
        assert!(!is_query_for(&good, &[]), "nothing is looked up");
        for (labels, kind) in [
            // Another type, another name, a parent or a subdomain.
            (&["vpn", "example", "org"][..], 16),
            (&["vpn", "example", "com"], 1),
            (&["example", "org"], 1),
            (&["secret", "vpn", "example", "org"], 1),
            (&["vpn", "example", "org", "secret"], 1),
            (&["vpn.example", "org"], 1),
        ] {
            assert!(!is_query_for(&question(labels, kind), &hosts), "{labels:?}");
        }
        for length in 0..good.len() {
            assert!(!is_query_for(&good[..length], &hosts), "cut to {length}");
        }
        let mut longer = good.clone();
        longer.push(0);
        assert!(!is_query_for(&longer, &hosts), "something follows");
        // A response, other flags, more records.
        for (place, value) in [
            (2, 0x81),
            (3, 0x80),
            (3, 0x0f),
            (5, 2),
            (7, 1),
            (9, 1),
            (11, 1),
        ] {
            let mut other = good.clone();
            other[place] = value;
            assert!(!is_query_for(&other, &hosts), "{place}");
        }
    }
}
