package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/quorate/quorate/cluster/backup/archive"
)

// mustBackup is a backup of a queue with one message.
func mustBackup(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := archive.NewWriter(&b)
	for _, err := range []error{
		w.JSON(archive.Header, archive.Info{ID: []byte("0123456789abcdef"), Cluster: "c", Product: "1.2.3", Begun: 1000, Queues: 1}),
		w.Frame(archive.Definitions, []byte("definitions")),
		w.JSON(archive.Queue, archive.Section{Name: []byte("a"), ID: 1}), w.Message([]byte("state"), []byte("payload")),
		w.JSON(archive.QueueEnd, archive.Total{Messages: 1, Bytes: 7}), w.Close(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// A backup is verified from a file, from a folder and from the input, which has no name to be shown.
func TestBackupVerify(t *testing.T) {
	whole := mustBackup(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "b"+backupSuffix)
	if err := os.WriteFile(file, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	const shown = "cluster_name\tc\nproduct_version\t1.2.3\nbegun\t1970-01-01T00:00:01Z\nqueues\t1\nmessages\t1\npayload_bytes\t7\n"
	const document = "  \"cluster_name\": \"c\",\n  \"product_version\": \"1.2.3\",\n  \"begun\": 1000,\n  \"queues\": 1,\n  \"messages\": 1,\n  \"payload_bytes\": 7\n}\n"
	for _, c := range []struct {
		args []string
		in   []byte
		code int
		want string
	}{
		{[]string{"backup", "verify", file}, nil, exitOK, "The backup is complete.\nfile\t" + file + "\n" + shown},
		{[]string{"backup", "verify", dir}, nil, exitOK, "The backup is complete.\nfile\t" + file + "\n" + shown},
		{[]string{"backup", "verify", "-"}, whole, exitOK, "The backup is complete.\n" + shown},
		{[]string{"--formatter", "json", "backup", "verify", file}, nil, exitOK, "{\n  \"file\": \"" + file + "\",\n" + document},
		{[]string{"--formatter", "json", "backup", "verify", "-"}, whole, exitOK, "{\n" + document},
		{[]string{"backup", "verify", "-"}, whole[:len(whole)-1], exitData, ""},
	} {
		var out, errOut bytes.Buffer
		p := program{name: "quoratectl", getenv: func(string) string { return "" }, in: bytes.NewReader(c.in), out: &out, errOut: &errOut}
		if code := p.run(c.args); code != c.code || out.String() != c.want {
			t.Errorf("%q: %d\n%s%s", c.args, code, out.String(), errOut.String())
		}
	}
}
