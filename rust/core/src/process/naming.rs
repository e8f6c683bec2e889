//! The name of a process, as `ps`, `htop` and `nvidia-smi` show it.

/// The longest name that the kernel keeps, in bytes.
pub const LONGEST: usize = 15;

/// Names the calling thread, and the process if that is its main thread. Longer names are cut; systems other than Linux
/// keep the old name.
pub fn name_this_thread(name: &str) {
    #[cfg(target_os = "linux")]
    {
        let mut text = [0_u8; LONGEST + 1];
        let end = (0..=name.len().min(LONGEST)).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
        text[..end].copy_from_slice(&name.as_bytes()[..end]);
        // SAFETY: the kernel reads 16 bytes at most, up to the zero that ends the text, which outlives the call.
        unsafe { libc::prctl(libc::PR_SET_NAME, text.as_ptr()) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = name;
}
