//! Version of the program as `ccm --version` prints it: number, commit and platform.

/// Version number, as agents report it.
const NUMBER: &str = env!("CARGO_PKG_VERSION");

/// Commit that the program was built from; `scripts/package` sets it.
const COMMIT: Option<&str> = option_env!("CCM_COMMIT");

/// Returns the version with commit and platform, such as `0.1.0 (4f2a91c07d, x86_64-linux-gnu)`.
pub(super) fn long() -> String {
    let commit = COMMIT.filter(|commit| !commit.is_empty());
    let commit = commit.map_or_else(String::new, |commit| format!("{commit}, "));
    format!("{NUMBER} ({commit}{})", platform())
}

fn platform() -> String {
    let libc = match () {
        () if cfg!(target_env = "gnu") => "-gnu",
        () if cfg!(target_env = "musl") => "-musl",
        () => "",
    };
    format!("{}-{}{libc}", std::env::consts::ARCH, std::env::consts::OS)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_names_number_and_platform() {
        let version = super::long();
        assert!(version.starts_with(super::NUMBER), "{version}");
        assert!(version.contains(std::env::consts::ARCH), "{version}");
    }
}
