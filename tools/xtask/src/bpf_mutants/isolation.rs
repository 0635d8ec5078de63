//! Keeps mutants from affecting programs outside the test's network namespace.
//!
//! The programs at the root cgroup and at security hooks run for every program on the machine, and
//! their check of the namespace may be what a fault is planted in. So a second check precedes each of
//! them, which no fault is planted in. Outside the namespace it answers "allow".

use super::c_source::CSource;

/// Appended to `state.h`.
const CHECKS: &str = r#"
static __always_inline bool isolation_is_other(u64 cookie)
{
	u32 zero_ = 0;
	struct state *state_ = bpf_map_lookup_elem(&state, &zero_);

	return !state_ || state_->netns != cookie;
}
#define ISOLATE_CONTEXT(it) isolation_is_other(bpf_get_netns_cookie(it))
#define ISOLATE_PACKET(it)                                                                  \
	isolation_is_other(core_read(core_read(                                             \
		core_read(((struct sk_buff *)it)->sk)->__sk_common.skc_net.net)->net_cookie))
#define ISOLATE_TASK()                                                                      \
	isolation_is_other(core_read(core_read(core_read(                                   \
		((struct task_struct *)bpf_get_current_task())->nsproxy)->net_ns)->net_cookie))
"#;

/// Functions without mutants: the checks of the namespace, which the second check makes
/// irrelevant in tests.
pub(super) const NOT_EXAMINED: [&str; 3] = ["is_in_netns", "is_task_in_netns", "state_in_netns"];

/// Files without mutants: with these lists user space ends connections, also in other namespaces.
pub(super) const NOT_EXAMINED_FILES: [&str; 1] = ["socket_list.h"];

/// Adds the second check to the programs of a file. `name` is the file's.
pub(super) fn isolated(name: &str, text: &str) -> String {
    let source = CSource::new(text);
    let mut result = text.to_owned();
    for function in source.functions().iter().rev() {
        let declaration: Vec<&str> = (function.tokens.start..function.body)
            .map(|at| source.token(at))
            .collect();
        if declaration.first() != Some(&"SEC") {
            continue;
        }
        let section = declaration[2];
        let has = |word: &str| declaration.contains(&word);
        let argument = declaration[declaration.len() - 2];
        let check = if has("bpf_sock") || has("bpf_sock_addr") {
            format!("\tif (ISOLATE_CONTEXT({argument}))\n\t\treturn ALLOW;\n")
        } else if section.starts_with("\"cgroup_skb/") {
            format!("\tif (ISOLATE_PACKET({argument}))\n\t\treturn ALLOW;\n")
        } else if section.starts_with("\"lsm/") {
            "\tif (ISOLATE_TASK())\n\t\treturn 0;\n".to_owned()
        } else {
            continue;
        };
        let at = source.tokens[function.body].end;
        result.insert_str(at, &format!("\n{check}"));
    }
    if name == "state.h" {
        result.push_str(CHECKS);
    }
    result
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::isolated;
    use crate::bpf_mutants::FOLDER;
    use crate::bpf_mutants::c_source::CSource;

    /// Sections whose programs run only for the namespace, only when the daemon asks, or only
    /// to record something.
    const HARMLESS: [&str; 4] = ["\"classifier\"", "\"iter/", "\"tp_btf/", "\"fentry/"];

    #[test]
    fn all_programs_that_could_refuse_something_elsewhere_are_checked() {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
        let mut checked = 0;
        for entry in fs::read_dir(format!("{root}{FOLDER}")).expect("the folder") {
            let path = entry.expect("a file").path();
            if path.extension().is_none_or(|it| it != "h") {
                continue;
            }
            let text = isolated("", &fs::read_to_string(&path).expect("a text"));
            let source = CSource::new(&text);
            for function in source.functions() {
                let at = function.tokens.start;
                if source.token(at) != "SEC" {
                    continue;
                }
                let section = source.token(at + 2);
                let is_checked = source.token(function.body + 3).starts_with("ISOLATE_");
                let is_harmless = HARMLESS.iter().any(|it| section.starts_with(it));
                assert!(is_checked || is_harmless, "{}: {section}", function.name);
                checked += usize::from(is_checked);
            }
        }
        // Sockets, addresses, AF_UNIX, packets and families.
        assert_eq!(checked, 1 + 10 + 1 + 2 + 1);
    }
}
