package main

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quorate/quorate/cluster/mgmt/api"
)

// pretendedLimits remembers what it was set to.
type pretendedLimits struct{ set []string }

func (p *pretendedLimits) SetLimit(name string, to api.Limit) error {
	if to.Relative != nil {
		p.set = append(p.set, fmt.Sprint(name, " ", *to.Relative))
	} else {
		p.set = append(p.set, name+" "+to.Absolute)
	}
	return nil
}

// SIGHUP applies what can change, says what needs a restart, and keeps everything if the file is wrong.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	file, logPath := filepath.Join(dir, "quorate.conf"), filepath.Join(dir, "quorate.log")
	write := func(text string) {
		if err := os.WriteFile(file, []byte("log.file = "+logPath+"\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("log.file.level = warning\nvm_memory_high_watermark.relative = 0.5\nmqtt.a = 1\n")
	read := func() (*settings, error) { return load(file, nil) }
	s, err := read()
	if err != nil {
		t.Fatal(err)
	}
	logger, level, log, err := openLog(s)
	if err != nil {
		t.Fatal(err)
	}
	defer log.close()
	r := &reloader{read: read, logger: logger, level: level, log: log, files: []*logFile{log}, now: s}
	again := func() (logged string) {
		t.Helper()
		before, err := os.ReadFile(logPath)
		if err != nil {
			t.Fatal(err)
		}
		signals := make(chan os.Signal, 1)
		signals <- syscall.SIGHUP
		close(signals)
		r.reloadOn(signals)
		after, err := os.ReadFile(logPath)
		if err != nil {
			t.Fatal(err)
		}
		return string(after[len(before):])
	}

	// What changes before the node is open applies when it is.
	write("log.file.level = debug\nvm_memory_high_watermark.relative = 0.4\nmqtt.a = 1\nstomp.b = 1\n")
	logged := again()
	if level.Level() != slog.LevelDebug || !strings.Contains(logged, "settings were reloaded") || !strings.Contains(logged, "setting=stomp.b") || strings.Contains(logged, "mqtt.a") {
		t.Errorf("the level is %v: %s", level, logged)
	}
	limits := &pretendedLimits{}
	r.opened(limits, s)

	write("vm_memory_high_watermark.absolute = 2GiB\ndisk_free_limit.relative = 1.5\nlog.file.rotation.size = 1048576\nlog.file.rotation.count = 3\nheartbeat = 7\n")
	logged = again()
	if level.Level() != slog.LevelInfo || log.when != (rotation{1 << 20, 3}) || !strings.Contains(logged, "settings take effect at the next start") || !strings.Contains(logged, "settings=heartbeat") {
		t.Errorf("the level is %v, rotation %+v: %s", level, log.when, logged)
	}
	set := limits.set
	if len(set) != 3 || set[0] != "vm_memory_high_watermark 0.4" || !strings.Contains(fmt.Sprint(set), "vm_memory_high_watermark 2147483648") || !strings.Contains(fmt.Sprint(set), "disk_free_limit 1.5") {
		t.Errorf("set: %q", set)
	}

	// What runs is shown: the new values of settings that have changed, the old ones of others.
	want := s.effective()
	for key, value := range map[string]string{
		"log.console.level": "info", "log.file.rotation.size": "1048576", "log.file.rotation.count": "3",
		"vm_memory_high_watermark.relative": "0.6", "vm_memory_high_watermark.absolute": "2GiB", "disk_free_limit.relative": "1.5",
	} {
		if want[key] == value {
			t.Errorf("%s was %s before", key, value)
		}
		want[key] = value
	}
	if got := r.effective(s); !maps.Equal(got, want) {
		t.Errorf("effective: %v, want %v", got, want)
	}

	write("log.file.level = debug\nno.such = 1\n")
	if logged := again(); level.Level() != slog.LevelInfo || !strings.Contains(logged, "settings were not reloaded") || !strings.Contains(logged, "unknown setting no.such") {
		t.Errorf("the level is %v: %s", level, logged)
	}
	if len(limits.set) != 3 {
		t.Errorf("set: %q", limits.set)
	}
	r.read = func() (*settings, error) { return nil, errors.New("gone") }
	if logged := again(); !strings.Contains(logged, "gone") {
		t.Error(logged)
	}
}
