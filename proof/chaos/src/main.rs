//! The program: see the library.

fn main() -> std::process::ExitCode {
    gesta_chaos::main()
}
