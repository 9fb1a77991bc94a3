// Package catalog is the replicated table of definitions: nodes, vhosts, users,
// permissions, exchanges, bindings, and queues with their placement.
//
// A Catalog is a deterministic machine: equal logs produce equal states and
// equal answers on every node. Its state is a View, an immutable value.
// Applying an entry creates the next View, which shares everything that the
// entry did not touch. Routing, permission checks and listings use a View and
// need no lock.
//
// The rules of a client's request (permission, existence, equivalence) are
// functions of a View. The broker calls them before it proposes anything, so
// that a refusal or a repeated declare costs no log entry. Apply calls them
// again, because another client may have been faster.
//
// The package does not choose nodes for replicas, hash passwords, or know what
// a queue holds: conditions on messages and consumers belong to the queue
// machine.
package catalog
