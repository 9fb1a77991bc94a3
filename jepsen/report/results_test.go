package report

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestQuantiles(t *testing.T) {
	var times []time.Duration
	for i := range 101 {
		times = append(times, time.Duration(100-i)*time.Millisecond)
	}
	if q := *QuantilesOf(times); q != (Quantiles{0, 50, 99, 100}) {
		t.Errorf("%+v", q)
	}
	if QuantilesOf(nil) != nil {
		t.Error("quantiles of nothing")
	}
}

// What is measured is printed, and kept as JSON.
func TestPublish(t *testing.T) {
	r := Result{Name: "a run", Messages: 1000, Seconds: 2, PerSecond: 500, Times: &Quantiles{1, 2, 3, 4}, PeakRSS: 3 << 20}
	r.Note("disk", 1.5, "MiB")
	file := filepath.Join(t.TempDir(), "r.json")
	var out strings.Builder
	if err := Publish(&out, []Result{r}, file); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a run", "1000", "500", "2.00", "4.00", "a run: disk 1.5 MiB"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var back []Result
	if err := json.Unmarshal(text, &back); err != nil || len(back) != 1 || back[0].Notes[0] != r.Notes[0] || *back[0].Times != *r.Times {
		t.Errorf("read back %+v: %v", back, err)
	}
}

func TestMedians(t *testing.T) {
	var rounds []Result
	for _, v := range []float64{3, 1, 2} {
		r := Result{Name: "a", Messages: v, PerSecond: 10 * v, Times: &Quantiles{v, v, v, v}}
		r.Note("disk", 5*v, "MiB")
		rounds = append(rounds, r)
	}
	rounds = append(rounds, Result{Name: "b", Written: 1, Switches: 7}, Result{Name: "b", Written: 4, Switches: 8})
	m := Medians(rounds)
	if len(m) != 2 || m[0].Messages != 2 || m[0].PerSecond != 20 || *m[0].Times != (Quantiles{2, 2, 2, 2}) || m[0].Notes[0].Value != 10 {
		t.Errorf("medians of three: %+v", m)
	}
	if m[1].Written != 2.5 || m[1].Switches != 7.5 || m[1].Times != nil {
		t.Errorf("medians of two: %+v", m[1])
	}
	if rounds[0].Notes[0].Value != 15 || rounds[0].Times.P50 != 3 {
		t.Error("a round was changed")
	}
}

func TestCompare(t *testing.T) {
	var out strings.Builder
	err := Compare(&out, []string{"ours", "theirs", "others"}, []Result{
		{Broker: "ours", Name: "a", PerSecond: 30, ServerCPU: 5, Times: &Quantiles{P50: 3}},
		{Broker: "ours", Name: "b", PerSecond: 7},
		{Broker: "theirs", Name: "a", PerSecond: 10, ServerCPU: 20, Times: &Quantiles{P50: 2}, Notes: []Note{{"disk", 1.5, "MiB"}}},
	}, "")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	for i, want := range [][]string{
		{"run", "broker", "msg/s", "p50", "ms", "p99", "ms", "max", "ms", "server", "CPU", "s/M", "client", "CPU", "s/M", "written", "B/msg", "peak", "RSS", "MiB", "|", "ours", "/", "it:"},
		{"a", "ours", "30", "3.00", "–", "–", "5.0", "–", "–", "–", "|"},
		{"a", "theirs", "10", "2.00", "–", "–", "20.0", "–", "–", "–", "|", "3.00", "1.50", "–", "–", "0.25", "–", "–"},
		{"a", "others", "–", "–", "–", "–", "–", "–", "–", "–", "|", "–", "–", "–", "–", "–", "–", "–"},
		{"b", "ours", "7"},
		{"b", "theirs", "–"},
		{"b", "others", "–"},
		{"a,", "theirs:", "disk", "1.5", "MiB"},
	} {
		got := strings.Fields(lines[i])
		if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
			t.Errorf("line %d: %q, want %q", i, got, want)
		}
	}
}
