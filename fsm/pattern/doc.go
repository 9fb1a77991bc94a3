// Package pattern matches names against regular expressions of the dialect that
// RabbitMQ's users write: PCRE2's, on bytes, as Erlang's module re runs it without
// options. It has look-ahead, look-behind, back-references, atomic groups and
// possessive quantifiers.
//
// The result depends on the text, the name and this package alone: there is no
// clock in it and no library. The machine of the catalog matches policies with it,
// so what a pattern matches, and after how many steps it gives up, changes only
// with a version of the machine.
//
// A match takes at most MaxSteps. Without back-references each place in the
// program is tried at most once at each place in the name, so that no pattern takes
// exponential time; with them the bound decides. What takes more does not match,
// as with the peer, whose library has such a bound, too.
//
// Not supported, and refused with its offset: recursion and subroutines, conditional
// groups, callouts, branch reset groups, verbs such as (*ACCEPT), \X, \p, the options
// J, a and r, and back-references inside a look-behind.
package pattern
