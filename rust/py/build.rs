//! Passes `cfg(Py_GIL_DISABLED)` to the compiler if the extension is built for a free-threaded interpreter.

fn main() {
    pyo3_build_config::use_pyo3_cfgs();
}
