// Package ordered has the containers in which the machines keep their state: a table in
// order of its keys, an array in chunks, items by handle, a queue, a sequence into
// which items are put anywhere, and texts by number.
//
// They promise that no operation takes long whatever they hold, that what they hold is
// in an order that follows from the operations alone, and that a copy that was frozen
// never changes: it shares its memory, and what is written to later is copied before,
// in pieces. They take no lock: one goroutine at a time uses one of them, and any may
// read what is frozen.
package ordered
