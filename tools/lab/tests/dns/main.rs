//! A tunnel's name servers with the programs that manage them: Debian's systemd-resolved on a
//! message bus, openresolv, Debian's resolvconf, and the file itself on restricted file systems.

mod file;
mod resolvconf;
mod resolved;
mod system;

use taupe_lab::packages::{OPENRESOLV, RESOLVCONF, SYSTEMD};
use taupe_lab::sandbox::{Suite, SystemTest};

fn main() {
    Suite::new(vec![
        SystemTest::new("resolved_as_resolvectl_does", resolved::as_resolvectl_does),
        SystemTest::new("resolved_is_verified", resolved::is_verified),
        SystemTest::new("resolved_knows_a_renamed_interface", resolved::renamed),
        SystemTest::new("resolved_looks_up_names", resolved::looks_up_names),
        SystemTest::new("resolved_is_started", resolved::is_started),
        SystemTest::new("resolved_of_another_network", resolved::of_another_network),
        SystemTest::new("resolved_hangs", resolved::that_hangs),
        SystemTest::new(
            "resolved_before_it_knows_the_interface",
            resolved::before_it_knows_the_interface,
        ),
        SystemTest::new("resolved_managed_interface", resolved::managed_interface),
        SystemTest::new("resolved_or_interface_gone", resolved::or_interface_gone),
        SystemTest::new("resolvconf_of_openresolv", resolvconf::of_openresolv),
        SystemTest::new("resolvconf_of_debian", resolvconf::of_debian),
        SystemTest::new("mounted_file", file::that_is_mounted),
        SystemTest::new("file_of_two_namespaces", file::of_two_namespaces),
        SystemTest::new("unchangeable_file", file::that_cannot_change),
    ])
    .prepare(|| SYSTEMD.unpack())
    .prepare(|| OPENRESOLV.unpack())
    .prepare(|| RESOLVCONF.unpack())
    .main()
}
