package peer

import (
	"log/slog"
	"sync"
)

// maxRefusals bounds how many reasons are remembered.
const maxRefusals = 256

// refusals remembers why links were refused: whoever is refused dials again
// several times a second, and the log needs to say so once.
type refusals struct {
	mu   sync.Mutex
	said map[string]struct{}
}

// log says why a link is refused, unless that was said.
func (r *refusals) log(to *slog.Logger, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := err.Error()
	if _, said := r.said[text]; said {
		return
	}
	if r.said == nil || len(r.said) >= maxRefusals {
		r.said = map[string]struct{}{}
	}
	r.said[text] = struct{}{}
	to.Warn("refused a link; further ones for the same reason are not logged", slog.Any("error", err))
}
