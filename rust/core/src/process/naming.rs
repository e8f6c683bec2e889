//! Sets the process name that `ps`, `htop` and `nvidia-smi` show.

/// The maximum length of a name in the kernel, in bytes.
pub const LONGEST: usize = 15;

/// Sets the name of the calling thread (on Linux only). If this is the main thread, the process also has this name.
pub fn name_this_thread(name: &str) {
    #[cfg(target_os = "linux")]
    {
        let mut text = [0_u8; LONGEST + 1];
        let end = (0..=name.len().min(LONGEST)).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
        text[..end].copy_from_slice(&name.as_bytes()[..end]);
        // SAFETY: the kernel reads at most 16 bytes, up to the terminating zero. The text outlives the call.
        unsafe { libc::prctl(libc::PR_SET_NAME, text.as_ptr()) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = name;
}
