//! Labs as users have them: the program is run as a separate process, as root (if these tests are) and as an ordinary
//! user. What is left behind is looked for on the machine, by a mark in every process's environment.

mod bench;
mod commands;
mod endings;
mod nodes;
mod refusals;
