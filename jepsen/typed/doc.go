// Package typed types the commands of the documentation as the pages have them: block by block, in
// order, in one shell for each page, against real nodes.
//
// A block whose lines begin with "$ " is a recording: "$ " begins a command, "> " continues it, and
// what is below is its answer, as a terminal shows it. Other blocks are commands only. In an
// answer "…", with the blanks around it, stands for anything within a line, and alone in its line for any number of lines. A
// name of the page's table, such as 4711, stands for what comes in its place when it is first
// answered, and then, also in commands, for the same.
//
// Each page has a machine of its own: this one, with all changes kept in memory, a network and
// process ids of its own. So pages may install packages, add users and use the default ports. What
// a page takes for granted, and the few programs that cannot work there (testdata), are prepared
// before its first block. What is not typed is in a table with its reason. A command that is
// neither typed nor in the table, and an entry of the table that no page has, fails the test.
package typed
