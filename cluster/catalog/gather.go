package catalog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/quorate/quorate/cluster/worker"
	"github.com/quorate/quorate/fsm/catalog"
	"github.com/quorate/quorate/proto/logpb"
)

const (
	// maxGathered and gatheredBytes bound an entry of gathered commands.
	maxGathered   = 256
	gatheredBytes = 256 << 10
	// gatherBelow is the size from which on a command is an entry of its own.
	gatherBelow = 64 << 10
)

var errCatalogCloses = errors.New("this node's catalog closes")

// gather makes one entry of what clients of this node define at the same time: while an entry is under way, what comes
// waits for the next. So whoever is alone waits for nobody, what one caller proposes keeps its order, and thirty that
// come together cost two entries, each with one write at every node and one wait until all nodes have it.
//
//	¬running ⇒ nothing waits
//	at most one entry is under way
type gather struct {
	// commit commits commands in one entry. failed is called with the error of each attempt that is not the last.
	commit func(ctx context.Context, commands []*logpb.CatalogCommand, failed func(error)) ([]*logpb.CatalogResult, error)
	tasks  *worker.Tasks

	mu      sync.Mutex
	running bool
	waiting []*gathered // in the order in which they came
}

// gathered is a command whose caller waits.
type gathered struct {
	command *logpb.CatalogCommand
	bytes   int
	entry   *gatheredEntry // nil: it waits for one
	done    chan struct{}  // closed when result or err is set
	result  *logpb.CatalogResult
	err     error
}

// gatheredEntry is the entry under way.
type gatheredEntry struct {
	all    []*gathered
	left   int // callers that wait for it still; with the last one its attempts end
	failed error
	ctx    context.Context
	cancel context.CancelFunc
}

// propose commits a command of a size with others. It returns when the command is committed, or ctx has ended; then the
// command is given up if it has not been taken into an entry, and what becomes of it is unknown otherwise.
func (g *gather) propose(ctx context.Context, c *logpb.CatalogCommand, size int) ([]*logpb.CatalogResult, error) {
	w := &gathered{command: c, bytes: size, done: make(chan struct{})}
	g.mu.Lock()
	g.waiting = append(g.waiting, w)
	first := !g.running
	g.running = true
	g.mu.Unlock()
	if first {
		g.tasks.Go(g.run)
	}
	select {
	case <-w.done:
	case <-ctx.Done():
		return nil, g.leave(w, ctx.Err())
	case <-g.tasks.Life().Done():
		return nil, g.leave(w, errCatalogCloses)
	}
	if w.err != nil {
		return nil, w.err
	}
	return []*logpb.CatalogResult{w.result}, nil
}

// leave notes that a caller waits no longer, and returns its error.
func (g *gather) leave(w *gathered, why error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.entry == nil {
		g.waiting = slices.DeleteFunc(g.waiting, func(x *gathered) bool { return x == w })
		return fmt.Errorf("catalog: %w (before the first attempt)", why)
	}
	if w.entry.left--; w.entry.left == 0 {
		w.entry.cancel()
	}
	if last := w.entry.failed; last != nil {
		return fmt.Errorf("catalog: %w (last attempt: %w)", why, last)
	}
	return fmt.Errorf("catalog: %w (in the first attempt)", why)
}

// run commits one entry after the other until nothing waits.
func (g *gather) run() {
	for e := g.take(); e != nil; e = g.take() {
		commands := make([]*logpb.CatalogCommand, len(e.all))
		for i, w := range e.all {
			commands[i] = w.command
		}
		results, err := g.commit(e.ctx, commands, func(err error) {
			g.mu.Lock()
			defer g.mu.Unlock()
			e.failed = err
		})
		e.cancel()
		for i, w := range e.all {
			if w.err = err; err == nil {
				w.result = results[i]
			}
			close(w.done)
		}
	}
}

// take begins an entry with what waits; nil: nothing does, and run ends.
func (g *gather) take() *gatheredEntry {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, bytes := 0, 0
	for n < min(len(g.waiting), maxGathered) && (n == 0 || bytes+g.waiting[n].bytes <= gatheredBytes) {
		bytes += g.waiting[n].bytes
		n++
	}
	if g.running = n > 0; !g.running {
		g.waiting = nil
		return nil
	}
	e := &gatheredEntry{all: slices.Clone(g.waiting[:n]), left: n}
	e.ctx, e.cancel = context.WithCancel(g.tasks.Life())
	g.waiting = slices.Delete(g.waiting, 0, n)
	for _, w := range e.all {
		w.entry = e
	}
	return e
}

// gathers reports whether a command may share an entry, and its size. What clients define may: no other command decides
// which others are performed, or takes long. Nothing is gathered before leaders admit each command by itself, and before this
// process has registered. A command that no leader could read would keep the others from being committed.
func (k *Catalog) gathers(c *logpb.CatalogCommand) (size int, may bool) {
	switch c.GetBody().(type) {
	case *logpb.CatalogCommand_DeclareQueue, *logpb.CatalogCommand_DeleteQueue, *logpb.CatalogCommand_DeclareExchange,
		*logpb.CatalogCommand_DeleteExchange, *logpb.CatalogCommand_Bind, *logpb.CatalogCommand_Unbind:
	default:
		return 0, false
	}
	v := k.View()
	if v.FSMVersion() < catalog.AdmittedApart || !k.isRegistered(v) {
		return 0, false
	}
	entry, err := logpb.Marshal(&logpb.CatalogEntry{Commands: []*logpb.CatalogCommand{c}})
	if err != nil || len(entry) > gatherBelow {
		return 0, false
	}
	_, err = decodeCatalog(entry, v.FSMVersion())
	return len(entry), err == nil
}

// admitted returns an entry as it is to be proposed. From version 3 on a command that is not admitted is refused by
// itself, and the entry has a note in its place; before, the whole entry is refused. results: how an entry that is not
// proposed is answered; nil: it is proposed.
func admitted(view *catalog.View, e *logpb.CatalogEntry, entry []byte) (_ []byte, results []*logpb.CatalogResult, err error) {
	refused := make([]*logpb.CatalogResult, 0, len(e.Commands))
	for i, c := range e.Commands {
		err := catalog.Admit(c)
		if err == nil {
			err = view.Fits(c)
		}
		switch {
		case err == nil:
			continue
		case view.FSMVersion() < catalog.AdmittedApart:
			return nil, slices.Repeat([]*logpb.CatalogResult{catalog.Refuse(err)}, len(e.Commands)), nil
		}
		e.Commands[i] = catalog.NotAdmitted(err)
		refused = append(refused, catalog.Refuse(err))
	}
	switch len(refused) {
	case 0:
		return entry, nil, nil
	case len(e.Commands):
		return nil, refused, nil
	}
	if entry, err = logpb.Marshal(e); len(entry) > MaxEntry { // the reasons are longer than the commands
		return nil, slices.Repeat(refused[:1], len(e.Commands)), nil
	}
	return entry, nil, err
}
