// Package catalog is the replicated table of definitions: nodes, vhosts,
// users, permissions, exchanges, bindings, and queues with their placement.
//
// A Catalog is a deterministic machine: equal logs give equal states and
// equal answers on every node. Its state is a View, an immutable value, and
// applying an entry makes the next View, which shares with the last one what
// the entry did not touch. Whoever routes, checks a permission or lists queues
// holds a View and needs no lock.
//
// The rules of a client's request (who may, what exists, what is equivalent)
// are functions of a View. The broker asks them before it proposes anything,
// so that a refusal or a repeated declare costs no log entry; Apply asks them
// again, as another client may have been faster.
//
// The package does not choose nodes for replicas, hash passwords, or know
// what a queue holds: conditions on messages and consumers are the queue
// machine's.
package catalog
