//! The filter engine of the Windows Filtering Platform.

use super::super::wide::wide;
use std::io;
use std::path::Path;
use std::ptr;
use windows_sys::Win32::Foundation::{
    FWP_E_ALREADY_EXISTS, FWP_E_IN_USE, FWP_E_PROVIDER_NOT_FOUND, FWP_E_SUBLAYER_NOT_FOUND, HANDLE,
};
use windows_sys::Win32::NetworkManagement::WindowsFilteringPlatform::{
    FWP_ACTION_BLOCK, FWP_ACTION_PERMIT, FWP_BYTE_BLOB, FWP_BYTE_BLOB_TYPE,
    FWP_CONDITION_FLAG_IS_LOOPBACK, FWP_CONDITION_VALUE0, FWP_CONDITION_VALUE0_0,
    FWP_FILTER_ENUM_OVERLAPPING, FWP_MATCH_EQUAL, FWP_MATCH_FLAGS_NONE_SET, FWP_UINT8, FWP_UINT32,
    FWP_VALUE0, FWP_VALUE0_0, FWPM_ACTION0, FWPM_CONDITION_ALE_APP_ID, FWPM_CONDITION_FLAGS,
    FWPM_DISPLAY_DATA0, FWPM_FILTER_CONDITION0, FWPM_FILTER_ENUM_TEMPLATE0,
    FWPM_FILTER_FLAG_PERSISTENT, FWPM_FILTER0, FWPM_LAYER_ALE_AUTH_CONNECT_V4,
    FWPM_LAYER_ALE_AUTH_CONNECT_V6, FWPM_LAYER_ALE_AUTH_RECV_ACCEPT_V4,
    FWPM_LAYER_ALE_AUTH_RECV_ACCEPT_V6, FWPM_PROVIDER_FLAG_PERSISTENT, FWPM_PROVIDER0,
    FWPM_SESSION_FLAG_DYNAMIC, FWPM_SESSION0, FWPM_SUBLAYER_FLAG_PERSISTENT, FWPM_SUBLAYER0,
    FwpmEngineClose0, FwpmEngineOpen0, FwpmFilterAdd0, FwpmFilterCreateEnumHandle0,
    FwpmFilterDeleteById0, FwpmFilterDestroyEnumHandle0, FwpmFilterEnum0, FwpmFreeMemory0,
    FwpmGetAppIdFromFileName0, FwpmProviderAdd0, FwpmProviderDeleteByKey0, FwpmSubLayerAdd0,
    FwpmSubLayerDeleteByKey0, FwpmSubLayerGetByKey0, FwpmTransactionAbort0, FwpmTransactionBegin0,
    FwpmTransactionCommit0,
};
use windows_sys::Win32::System::Rpc::RPC_C_AUTHN_WINNT;
use windows_sys::core::GUID;

/// The layers that authorise outgoing and incoming connections of a program.
const LAYERS: [GUID; 4] = [
    FWPM_LAYER_ALE_AUTH_CONNECT_V4,
    FWPM_LAYER_ALE_AUTH_CONNECT_V6,
    FWPM_LAYER_ALE_AUTH_RECV_ACCEPT_V4,
    FWPM_LAYER_ALE_AUTH_RECV_ACCEPT_V6,
];

/// Filters listed per call.
const AT_ONCE: u32 = 256;

/// Weight of the sublayer: in the middle. A block in any sublayer blocks.
const MIDDLE: u16 = 0x8000;

/// Action of a filter for a program's connections.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Filter {
    /// Refuse them, also after a restart, except connections to this machine itself.
    Block,
    /// Allow them in spite of a block in the same sublayer, until the session ends.
    Pass,
}

/// The engine's identifier of a program, which refers to its file.
pub(super) struct Program(*mut FWP_BYTE_BLOB);

impl Program {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let path = wide(path)?;
        let mut blob = ptr::null_mut();
        // SAFETY: the path ends with a zero, and `blob` is valid for writing the result.
        check(unsafe { FwpmGetAppIdFromFileName0(path.as_ptr(), &raw mut blob) })?;
        Ok(Self(blob))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let mut blob = self.0.cast();
        // SAFETY: the engine's library allocated it, to be freed with this function.
        unsafe { FwpmFreeMemory0(&raw mut blob) };
    }
}

/// A session with the filter engine.
pub(super) struct Engine(HANDLE);

// SAFETY: the handle stands for a session with a service, which any thread of the process may use;
// each call is one request.
unsafe impl Send for Engine {}

impl Engine {
    /// Opens a session. Everything that is added in a dynamic session is removed when it ends.
    pub(super) fn open(is_dynamic: bool) -> io::Result<Self> {
        let session = FWPM_SESSION0 {
            flags: if is_dynamic {
                FWPM_SESSION_FLAG_DYNAMIC
            } else {
                0
            },
            ..FWPM_SESSION0::default()
        };
        let mut handle = ptr::null_mut();
        // SAFETY: null stands for this machine and this user. The session outlives the call, and
        // `handle` is valid for writing.
        check(unsafe {
            FwpmEngineOpen0(
                ptr::null(),
                RPC_C_AUTHN_WINNT,
                ptr::null(),
                &raw const session,
                &raw mut handle,
            )
        })?;
        Ok(Self(handle))
    }

    /// Applies all changes of `change`, or none.
    pub(super) fn transaction(
        &self,
        change: impl FnOnce(&Self) -> io::Result<()>,
    ) -> io::Result<()> {
        // SAFETY: the session is open as long as `self` lives.
        check(unsafe { FwpmTransactionBegin0(self.0, 0) })?;
        let changed = change(self).and_then(|()| {
            // SAFETY: as above; the transaction has begun.
            check(unsafe { FwpmTransactionCommit0(self.0) })
        });
        if changed.is_err() {
            // SAFETY: as above. Otherwise the engine would abort it at the end of the session.
            unsafe { FwpmTransactionAbort0(self.0) };
        }
        changed
    }

    /// Adds a persistent provider with a sublayer; either may exist already.
    pub(super) fn add_sublayer(&self, provider: &GUID, sublayer: &GUID) -> io::Result<()> {
        let mut name = wide("Taupe")?;
        let mut text = wide("Programs that may use the network only through their tunnel")?;
        let shown = FWPM_DISPLAY_DATA0 {
            name: name.as_mut_ptr(),
            description: text.as_mut_ptr(),
        };
        let mut owner = *provider;
        let whose = FWPM_PROVIDER0 {
            providerKey: *provider,
            displayData: shown,
            flags: FWPM_PROVIDER_FLAG_PERSISTENT,
            ..FWPM_PROVIDER0::default()
        };
        // SAFETY: the session is open. Everything that `whose` points to outlives the call. A null
        // descriptor means the default one.
        let added = unsafe { FwpmProviderAdd0(self.0, &raw const whose, ptr::null_mut()) };
        check_except(added, FWP_E_ALREADY_EXISTS)?;
        let place = FWPM_SUBLAYER0 {
            subLayerKey: *sublayer,
            displayData: shown,
            flags: FWPM_SUBLAYER_FLAG_PERSISTENT,
            providerKey: &raw mut owner,
            weight: MIDDLE,
            ..FWPM_SUBLAYER0::default()
        };
        // SAFETY: as above.
        let added = unsafe { FwpmSubLayerAdd0(self.0, &raw const place, ptr::null_mut()) };
        check_except(added, FWP_E_ALREADY_EXISTS)
    }

    /// Returns true if the sublayer exists.
    pub(super) fn has_sublayer(&self, sublayer: &GUID) -> io::Result<bool> {
        let mut place = ptr::null_mut();
        // SAFETY: the session is open, the key outlives the call, and `place` is valid for writing.
        let found = unsafe { FwpmSubLayerGetByKey0(self.0, sublayer, &raw mut place) };
        if found.cast_signed() == FWP_E_SUBLAYER_NOT_FOUND {
            return Ok(false);
        }
        check(found)?;
        let mut place = place.cast();
        // SAFETY: the engine's library allocated it, to be freed with this function.
        unsafe { FwpmFreeMemory0(&raw mut place) };
        Ok(true)
    }

    /// Removes the provider and the sublayer; either may be missing.
    pub(super) fn remove_sublayer(&self, provider: &GUID, sublayer: &GUID) -> io::Result<()> {
        // SAFETY: the session is open, and the keys outlive the calls.
        let (place, whose) = unsafe {
            let place = FwpmSubLayerDeleteByKey0(self.0, sublayer);
            (place, FwpmProviderDeleteByKey0(self.0, provider))
        };
        check_except(place, FWP_E_SUBLAYER_NOT_FOUND)?;
        check_except(whose, FWP_E_PROVIDER_NOT_FOUND)
    }

    /// Adds a filter for a program to every layer.
    pub(super) fn add(
        &self,
        provider: &GUID,
        sublayer: &GUID,
        program: &Program,
        filter: Filter,
    ) -> io::Result<()> {
        let mut name = wide("Taupe")?;
        let mut owner = *provider;
        let is_program = FWPM_FILTER_CONDITION0 {
            fieldKey: FWPM_CONDITION_ALE_APP_ID,
            matchType: FWP_MATCH_EQUAL,
            conditionValue: FWP_CONDITION_VALUE0 {
                r#type: FWP_BYTE_BLOB_TYPE,
                Anonymous: FWP_CONDITION_VALUE0_0 {
                    byteBlob: program.0,
                },
            },
        };
        let leaves_machine = FWPM_FILTER_CONDITION0 {
            fieldKey: FWPM_CONDITION_FLAGS,
            matchType: FWP_MATCH_FLAGS_NONE_SET,
            conditionValue: FWP_CONDITION_VALUE0 {
                r#type: FWP_UINT32,
                Anonymous: FWP_CONDITION_VALUE0_0 {
                    uint32: FWP_CONDITION_FLAG_IS_LOOPBACK,
                },
            },
        };
        let mut conditions = [is_program, leaves_machine];
        let (action, weight, flags) = match filter {
            Filter::Block => (FWP_ACTION_BLOCK, 0, FWPM_FILTER_FLAG_PERSISTENT),
            Filter::Pass => (FWP_ACTION_PERMIT, 15, 0),
        };
        for layer in LAYERS {
            let filter = FWPM_FILTER0 {
                displayData: FWPM_DISPLAY_DATA0 {
                    name: name.as_mut_ptr(),
                    description: ptr::null_mut(),
                },
                flags,
                providerKey: &raw mut owner,
                layerKey: layer,
                subLayerKey: *sublayer,
                weight: FWP_VALUE0 {
                    r#type: FWP_UINT8,
                    Anonymous: FWP_VALUE0_0 { uint8: weight },
                },
                numFilterConditions: 2,
                filterCondition: conditions.as_mut_ptr(),
                action: FWPM_ACTION0 {
                    r#type: action,
                    ..FWPM_ACTION0::default()
                },
                ..FWPM_FILTER0::default()
            };
            // SAFETY: the session is open. There are two conditions, as announced, and everything
            // that the filter points to outlives the call. The output pointer for the filter's
            // number is optional and null.
            check(unsafe {
                FwpmFilterAdd0(self.0, &raw const filter, ptr::null_mut(), ptr::null_mut())
            })?;
        }
        Ok(())
    }

    /// Removes a provider's persistent filters.
    pub(super) fn remove_filters(&self, provider: &GUID) -> io::Result<()> {
        for layer in LAYERS {
            for id in self.filters(provider, layer)? {
                // SAFETY: the session is open.
                check(unsafe { FwpmFilterDeleteById0(self.0, id) })?;
            }
        }
        Ok(())
    }

    fn filters(&self, provider: &GUID, layer: GUID) -> io::Result<Vec<u64>> {
        let mut owner = *provider;
        let template = FWPM_FILTER_ENUM_TEMPLATE0 {
            providerKey: &raw mut owner,
            layerKey: layer,
            enumType: FWP_FILTER_ENUM_OVERLAPPING,
            actionMask: u32::MAX,
            ..FWPM_FILTER_ENUM_TEMPLATE0::default()
        };
        let mut list = ptr::null_mut();
        // SAFETY: the session is open, and the template outlives the call.
        check(unsafe { FwpmFilterCreateEnumHandle0(self.0, &raw const template, &raw mut list) })?;
        let mut ids = Vec::new();
        let read = loop {
            let (mut filters, mut count) = (ptr::null_mut(), 0);
            // SAFETY: the session and the list are open; both output variables are valid for
            // writing.
            let read = check(unsafe {
                FwpmFilterEnum0(self.0, list, AT_ONCE, &raw mut filters, &raw mut count)
            });
            if read.is_err() || count == 0 {
                break read;
            }
            for index in 0..count as usize {
                // SAFETY: the engine returned `count` pointers to filters, which are freed only
                // below.
                let filter = unsafe { &**filters.add(index) };
                if filter.flags & FWPM_FILTER_FLAG_PERSISTENT != 0 {
                    ids.push(filter.filterId);
                }
            }
            let mut filters = filters.cast();
            // SAFETY: the engine's library allocated it, to be freed with this function.
            unsafe { FwpmFreeMemory0(&raw mut filters) };
        };
        // SAFETY: the session and the list are open, and the list is not used afterwards.
        unsafe { FwpmFilterDestroyEnumHandle0(self.0, list) };
        read.map(|()| ids)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: the session is open, and is not used afterwards.
        unsafe { FwpmEngineClose0(self.0) };
    }
}

/// Returns true if the error means that the provider or the sublayer does not exist.
pub(super) fn is_sublayer_missing(error: &io::Error) -> bool {
    let gone = [FWP_E_PROVIDER_NOT_FOUND, FWP_E_SUBLAYER_NOT_FOUND];
    gone.into_iter()
        .any(|code| error.raw_os_error() == Some(code))
}

/// Returns true if the error means that the provider or the sublayer still has filters.
pub(super) fn is_in_use(error: &io::Error) -> bool {
    error.raw_os_error() == Some(FWP_E_IN_USE)
}

fn check(code: u32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code.cast_signed())),
    }
}

fn check_except(code: u32, expected: i32) -> io::Result<()> {
    match code.cast_signed() {
        code if code == expected => Ok(()),
        _ => check(code),
    }
}
