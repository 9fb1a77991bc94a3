package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// report is what is printed for lines of go test -json. Each line of text is an event:
// its action, package, test and output.
func report(t *testing.T, slowest int, text string) string {
	t.Helper()
	l, err := openLogs("")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	s := newSuite(&out, l)
	if err := s.read(strings.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	s.close(83*time.Second, slowest)
	return out.String()
}

func expect(t *testing.T, have, want string) {
	t.Helper()
	if have != want {
		t.Errorf("printed\n%swant\n%s", have, want)
	}
}

func TestLineForEachPackage(t *testing.T) {
	expect(t, report(t, 2, `{"Action":"start","Package":"example.org/house/room/a"}
{"Action":"run","Package":"example.org/house/room/a","Test":"TestA"}
{"Action":"run","Package":"example.org/house/room/a","Test":"TestA/one"}
{"Action":"pass","Package":"example.org/house/room/a","Test":"TestA/one","Elapsed":0.5}
{"Action":"run","Package":"example.org/house/room/a","Test":"TestA/two"}
{"Action":"output","Package":"example.org/house/room/a","Test":"TestA/two","Output":"    a_test.go:12: needs a compiler,\n"}
{"Action":"output","Package":"example.org/house/room/a","Test":"TestA/two","Output":"        which is not here\n"}
{"Action":"output","Package":"example.org/house/room/a","Test":"TestA/two","Output":"    --- SKIP: TestA/two (0.00s)\n"}
{"Action":"skip","Package":"example.org/house/room/a","Test":"TestA/two","Elapsed":0}
{"Action":"pass","Package":"example.org/house/room/a","Test":"TestA","Elapsed":0.6}
{"Action":"output","Package":"example.org/house/room/a","Output":"PASS\n"}
{"Action":"pass","Package":"example.org/house/room/a","Elapsed":1.25}
{"Action":"start","Package":"example.org/house/b"}
{"Action":"output","Package":"example.org/house/b","Output":"?   \texample.org/house/b\t[no test files]\n"}
{"Action":"skip","Package":"example.org/house/b","Elapsed":0}
`), `ok      1.2s  room/a 1 passed, 0 failed, 1 skipped
   0.6s  room/a TestA
   0.5s  room/a TestA/one
skipped 1: needs a compiler, which is not here: room/a TestA/two
1m23s: 1 passed, 0 failed, 1 skipped
`)
}

func TestFailureShowsItsOwnLastLines(t *testing.T) {
	var noise, last strings.Builder
	for range 3 * shown {
		noise.WriteString(`{"Action":"output","Package":"example.org/house/a","Test":"TestA/two","Output":"a node says much\n"}` + "\n")
	}
	for range shown - 1 {
		last.WriteString("    a node says much\n")
	}
	expect(t, report(t, 0, `{"Action":"run","Package":"example.org/house/a","Test":"TestA"}
{"Action":"run","Package":"example.org/house/a","Test":"TestA/one"}
{"Action":"output","Package":"example.org/house/a","Test":"TestA/one","Output":"of another test\n"}
{"Action":"run","Package":"example.org/house/a","Test":"TestA/two"}
`+noise.String()+`{"Action":"output","Package":"example.org/house/a","Test":"TestA/two","Output":"    a_test.go:7: the leader is gone\n"}
{"Action":"fail","Package":"example.org/house/a","Test":"TestA/two","Elapsed":3}
{"Action":"pass","Package":"example.org/house/a","Test":"TestA/one","Elapsed":3}
{"Action":"fail","Package":"example.org/house/a","Test":"TestA","Elapsed":3}
{"Action":"fail","Package":"example.org/house/a","Elapsed":4}
`), "--- FAIL: a TestA/two\n"+last.String()+`        a_test.go:7: the leader is gone
FAIL    4.0s  a 1 passed, 1 failed
failed a TestA/two: a_test.go:7: the leader is gone
1m23s: 1 passed, 1 failed
`)
}

func TestCrashIsShownFromItsBeginning(t *testing.T) {
	have := report(t, 0, `{"Action":"run","Package":"example.org/house/a","Test":"TestA"}
{"Action":"run","Package":"example.org/house/a","Test":"TestB"}
{"Action":"output","Package":"example.org/house/a","Test":"TestB","Output":"before\n"}
{"Action":"output","Package":"example.org/house/a","Test":"TestB","Output":"panic: test timed out after 1m0s\n"}
`+strings.Repeat(`{"Action":"output","Package":"example.org/house/a","Test":"TestB","Output":"goroutine\n"}`+"\n", 500)+
		`{"Action":"fail","Package":"example.org/house/a","Elapsed":60}
`)
	want := "--- FAIL: a TestA (has not ended)\n--- FAIL: a TestB (has not ended)\n    panic: test timed out after 1m0s\n" +
		strings.Repeat("    goroutine\n", shown-1) + "FAIL   60.0s  a 0 passed, 2 failed\nfailed a TestA (has not ended)\n" +
		"failed a TestB (has not ended): panic: test timed out after 1m0s\n1m23s: 0 passed, 2 failed\n"
	expect(t, have, want)
}

func TestPackageFailsWithoutTest(t *testing.T) {
	expect(t, report(t, 0, `{"Action":"build-output","ImportPath":"example.org/house/a [example.org/house/a.test]","Output":"a/a.go:3:1: syntax error\n"}
{"Action":"build-fail","ImportPath":"example.org/house/a [example.org/house/a.test]"}
{"Action":"start","Package":"example.org/house/a"}
{"Action":"output","Package":"example.org/house/a","Output":"FAIL\texample.org/house/a [build failed]\n"}
{"Action":"fail","Package":"example.org/house/a","Elapsed":0,"FailedBuild":"example.org/house/a [example.org/house/a.test]"}
{"Action":"run","Package":"example.org/house/b","Test":"TestB"}
{"Action":"pass","Package":"example.org/house/b","Test":"TestB","Elapsed":0}
{"Action":"output","Package":"example.org/house/b","Output":"goroutines left behind\n"}
{"Action":"fail","Package":"example.org/house/b","Elapsed":0}
`), `--- FAIL: a
    a/a.go:3:1: syntax error
FAIL    0.0s  a 0 passed, 1 failed
--- FAIL: b
    goroutines left behind
FAIL    0.0s  b 1 passed, 1 failed
failed a: a/a.go:3:1: syntax error
failed b: goroutines left behind
1m23s: 1 passed, 2 failed
`)
}

// What go test does with a real package that fails: the code to exit with, and the files.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":    "module example.org/house\n\ngo 1.26\n",
		"a_test.go": "package a\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) { t.Log(\"fine\") }\n\nfunc TestBad(t *testing.T) { t.Error(\"bad\") }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	var out strings.Builder
	code, err := run(&out, "kept", 0, []string{"."})
	if err != nil || code != 1 || !strings.Contains(out.String(), "a_test.go:7: bad\n    (all of it: kept/example.org-house.log)\nFAIL") ||
		!strings.HasSuffix(out.String(), ": 1 passed, 1 failed\n") {
		t.Errorf("%d, %v:\n%s", code, err, &out)
	}
	kept, err := os.ReadFile("kept/example.org-house.log")
	if err != nil || !strings.Contains(string(kept), "a_test.go:5: fine\n") {
		t.Errorf("%v:\n%s", err, kept)
	}
	if code, err := run(&out, "", 0, []string{"-run", "Good", "."}); code != 0 || err != nil {
		t.Errorf("%d, %v", code, err)
	}
}
