package main

import (
	"errors"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/quorate/quorate/cluster/alarm"
	"github.com/quorate/quorate/cluster/mgmt"
	"github.com/quorate/quorate/cluster/mgmt/api"
)

// reloader opens the log files of a node again and reads its settings again. It applies those that
// can change while a node runs; certificates are watched anyway.
type reloader struct {
	read   func() (*settings, error)
	logger *slog.Logger
	level  *slog.LevelVar
	log    *logFile
	files  []*logFile // opened again, log among them

	mu     sync.Mutex
	now    *settings
	limits mgmt.Resources // nil: the node is not open yet
}

// changeable are the settings that a reload applies. All others need a restart.
var changeable = []string{
	"log.console.level", "log.file.rotation.size", "log.file.rotation.count",
	"vm_memory_high_watermark.relative", "vm_memory_high_watermark.absolute", "disk_free_limit.relative", "disk_free_limit.absolute",
}

// reloadOn reloads at each signal. The process continues whether or not that works.
func (r *reloader) reloadOn(signals <-chan os.Signal) {
	for s := range signals {
		reopen(r.logger, s, r.files...)
		r.reload()
	}
}

// opened takes the limits of the node, which has been opened with the settings of its start.
func (r *reloader) opened(of mgmt.Resources, at *settings) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limits = of
	if err := r.limit(at); err != nil {
		r.logger.Error("limits were not changed", "error", err)
	}
}

// reload reads the settings again. Those that cannot be read, or are wrong, change nothing.
func (r *reloader) reload() {
	r.mu.Lock()
	defer r.mu.Unlock()
	next, err := r.read()
	if err != nil {
		r.logger.Error("settings were not reloaded", "error", err)
		return
	}
	for _, n := range next.notices {
		if !slices.Contains(r.now.notices, n) {
			r.logger.Warn("setting "+n.what, "setting", n.key, "reason", n.why, "page", "configuration.md")
		}
	}
	before := r.now
	applied, later := before.changes(next)
	r.now = next
	r.level.Set(logLevels[next.logLevel])
	r.log.bound(next.rotation)
	if err := r.limit(before); err != nil {
		r.logger.Error("limits were not changed", "error", err)
	}
	r.logger.Info("settings were reloaded", "changed", strings.Join(applied, " "))
	if len(later) > 0 {
		r.logger.Warn("settings take effect at the next start", "settings", strings.Join(later, " "))
	}
}

// effective returns the settings that the node runs with, which was started with these: those that a
// reload applies as they were read last.
func (r *reloader) effective(started *settings) map[string]string {
	all := started.effective()
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now.effective()
	for _, key := range changeable {
		if value, ok := now[key]; ok {
			all[key] = value
		} else {
			delete(all, key)
		}
	}
	return all
}

// changes names the settings that differ: those that can be applied, and those that need a restart.
func (s *settings) changes(next *settings) (applied, later []string) {
	old := map[string]string{}
	s.each(true, func(key string, g given) { old[key] = g.value })
	note := func(key string) {
		if slices.Contains(changeable, key) {
			applied = append(applied, key)
		} else {
			later = append(later, key)
		}
	}
	next.each(true, func(key string, g given) {
		if have, ok := old[key]; !ok || have != g.value {
			note(key)
		}
		delete(old, key)
	})
	for key := range old {
		note(key)
	}
	slices.Sort(later)
	return applied, later
}

// limit applies the limits that differ from those of before. What an operator has set by hand stays
// until the file changes. The caller holds r.mu.
func (r *reloader) limit(before *settings) error {
	if r.limits == nil {
		return nil
	}
	var errs []error
	for name, l := range map[string][2]alarm.Limit{
		"vm_memory_high_watermark": {before.memoryLimit, r.now.memoryLimit}, "disk_free_limit": {before.diskLimit, r.now.diskLimit},
	} {
		if l[0] != l[1] {
			errs = append(errs, r.limits.SetLimit(name, limitOf(l[1])))
		}
	}
	return errors.Join(errs...)
}

// limitOf is a limit as the HTTP API takes it.
func limitOf(l alarm.Limit) api.Limit {
	if size, ok := strings.CutSuffix(l.String(), " bytes"); ok {
		return api.Limit{Absolute: size}
	}
	part, _ := strconv.ParseFloat(l.String(), 64)
	return api.Limit{Relative: &part}
}
