//! Advice about a device that does not start.

use taupe_engine::StartError;
use taupe_os_linux::run_directory::RunDirectoryError;
use taupe_os_linux::tun::OpenError;

/// Returns advice for an error of starting, or nothing.
pub(crate) fn start_advice(error: &StartError) -> String {
    match error {
        StartError::Tun(OpenError::Device(_)) => {
            "; it takes root, and the kernel's tun module (`modprobe tun`)".to_owned()
        }
        StartError::Tun(OpenError::Permission(_)) => "; run it as root".to_owned(),
        StartError::Tun(OpenError::Busy(interface)) => {
            format!("; choose another name, or remove it (`ip link delete {interface}`)")
        }
        StartError::Running(_) => "; delete the interface (`ip link del`) to end it".to_owned(),
        StartError::Folder(RunDirectoryError::Unsafe { path, .. }) => {
            let path = path.display();
            format!(" (`chown root {path}`, `chmod o-w {path}`)")
        }
        _ => String::new(),
    }
}
