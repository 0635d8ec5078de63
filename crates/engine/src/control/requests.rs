//! Configuration requests.

use taupe_runtime::configuration::{self, Refusal};
use taupe_uapi::{Errno, Request, SetRequest, Status};
use tracing::warn;
use zeroize::Zeroizing;

use super::Control;

impl Control {
    pub(super) fn handle_request(&mut self, request: Request) -> Zeroizing<String> {
        match request {
            Request::Get => {
                let status = self.driver.device().status();
                let counters = self.shared.device_counters(self.lanes.count());
                taupe_uapi::answer_get_with(&status, self.port, self.mark, &counters)
            }
            Request::Set(set) => {
                let answer = match self.apply(set) {
                    Ok(()) => Status::SUCCESS.to_string(),
                    Err(refusal) => refusal.answer(),
                };
                Zeroizing::new(answer)
            }
        }
    }

    /// Applies the whole request, or nothing of it.
    fn apply(&mut self, request: SetRequest) -> Result<(), Refusal> {
        let SetRequest {
            listen_port,
            fwmark,
            device,
        } = request;
        let update = self.driver.prepare(device).map_err(configuration::refuse)?;
        if listen_port.is_some() {
            // If the interface has just come up, a port in use must be refused. The loop may not
            // have read the kernel's notice yet, so check now.
            self.check_link();
        }
        let previous_mark = self.mark;
        if let Some(mark) = fwmark {
            self.set_mark(mark)?;
        }
        if let Some(port) = listen_port
            && let Err(error) = self.set_port(port)
        {
            warn!(%error, port, "configuration refused");
            let _ = self.set_mark(previous_mark);
            return Err(Errno::AddressInUse.into());
        }
        self.own_pq_key
            .apply(self.driver.device_mut(), update)
            .map_err(configuration::refuse)
    }
}
