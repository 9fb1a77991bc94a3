package group

import (
	"context"
	"log/slog"
)

// groupHandler says of which queue a line is. It costs nothing until there is one: groups wake more often than they log.
type groupHandler struct {
	slog.Handler
	of *Spec
}

// groupLogger logs for one group.
func groupLogger(to *slog.Logger, of *Spec) *slog.Logger {
	return slog.New(groupHandler{to.Handler(), of})
}

// Handle implements slog.Handler.
func (h groupHandler) Handle(ctx context.Context, r slog.Record) error {
	return h.named().Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h groupHandler) WithAttrs(attrs []slog.Attr) slog.Handler { return h.named().WithAttrs(attrs) }

// WithGroup implements slog.Handler.
func (h groupHandler) WithGroup(name string) slog.Handler { return h.named().WithGroup(name) }

func (h groupHandler) named() slog.Handler {
	return h.Handler.WithAttrs([]slog.Attr{slog.String("queue", h.of.Name), slog.String("vhost", h.of.VHost), slog.Any("group", h.of.Group)})
}
