package main

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/quorate/quorate/cluster/worker"
)

// supervisor tells the service manager that started this process, such as systemd, how it is doing.
// Without one (no NOTIFY_SOCKET) it does nothing.
type supervisor struct {
	logger *slog.Logger
	// every is the interval of signs of life: a third of the time after which the service manager
	// takes the process for dead; 0: it does not want any.
	every  time.Duration
	health health

	ending  chan struct{}
	running sync.WaitGroup
	last    string // the last description sent
}

// health is what a node knows about itself.
type health interface {
	// NotReady says why clients are not served; empty: they are.
	NotReady() string
	// Dead says why the process should be restarted; empty: it makes progress.
	Dead() string
}

// describeEvery is how often the description of the process is checked, unless signs of life are due
// more often.
const describeEvery = time.Second

// supervise begins to describe the process to the service manager.
func supervise(logger *slog.Logger, h health) *supervisor {
	s := &supervisor{logger: logger, health: h, ending: make(chan struct{})}
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		logger.Warn("the service manager's watchdog is not notified", "error", err)
	}
	s.every = limit / 3
	if os.Getenv("NOTIFY_SOCKET") != "" {
		s.running.Go(s.run)
	}
	return s
}

// run keeps the description current, and sends signs of life while the process makes progress. If a
// part of the node is stuck, the check does not return and there are no more signs of life.
func (s *supervisor) run() {
	every := describeEvery
	if s.every > 0 {
		every = min(every, s.every)
	}
	var due time.Time
	worker.Every(s.ending, every, func() {
		var states []string
		if d := s.description(); d != s.last {
			s.last, states = d, append(states, "STATUS="+d)
		}
		if s.every > 0 && !time.Now().Before(due) {
			due = time.Now().Add(s.every)
			if why := s.health.Dead(); why != "" {
				s.logger.Error("the process makes no progress; the service manager's watchdog is not notified", "reason", why)
			} else {
				states = append(states, daemon.SdNotifyWatchdog)
			}
		}
		s.notify(strings.Join(states, "\n"))
	})
}

func (s *supervisor) description() string {
	if why := s.health.NotReady(); why != "" {
		return why
	}
	return "the node serves clients"
}

// notify sends a state, if any.
func (s *supervisor) notify(state string) {
	if state == "" {
		return
	}
	if _, err := daemon.SdNotify(false, state); err != nil {
		s.logger.Warn("the service manager is not notified", "error", err)
	}
}

// ready reports that the node serves clients.
func (s *supervisor) ready() { s.notify(daemon.SdNotifyReady) }

// stop reports that the process ends, and ends the signs of life: the service manager bounds by itself
// how long it waits. It returns when the last check has, or ctx ends.
func (s *supervisor) stop(ctx context.Context) error {
	close(s.ending)
	s.notify(daemon.SdNotifyStopping + "\nSTATUS=the node is stopping")
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	return nil
}
