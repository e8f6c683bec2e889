//! Sets the process name that `ps`, `htop` and `nvidia-smi` show.

/// Sets the name of the calling thread (only on Linux). The kernel keeps the first 15 bytes of the name.
pub fn name_this_thread(name: &str) {
    #[cfg(target_os = "linux")]
    {
        let end = (0..=15).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
        let _ = std::ffi::CString::new(&name[..end]).map(|name| rustix::thread::set_name(&name));
    }
    #[cfg(not(target_os = "linux"))]
    let _ = name;
}
