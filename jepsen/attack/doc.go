// Package attack tries from outside what nobody may do to a cluster: without a
// login, with the login of a user who may do little, as a node that does not
// belong, as a local user of the host. Each case is one attack and says what is
// to come of it; none may end a node, cause a panic, or take memory without a
// bound.
//
// Cases are subtests by the name of their class and their own. A case runs
// against a cluster that all of them share, or, if it changes how nodes are
// run, against one of its own.
package attack
