//! `gesta-lab`; everything is in the library.

fn main() -> std::process::ExitCode {
    gesta_lab::main()
}
