package tidy

import (
	"os/exec"
	"strings"
	"testing"
)

// judged is where the rules for commits begin: what is newer than this commit, and than the newest release, keeps them.
const judged = "9598197"

// checkCommit says what is wrong with the message of a commit: its subject names the package and what now holds, in
// at most 60 characters, and its body says why.
func checkCommit(message string) string {
	subject, body, _ := strings.Cut(strings.TrimSpace(message), "\n")
	switch at, what, found := strings.Cut(subject, ": "); {
	case !found || strings.TrimSpace(at) == "" || strings.TrimSpace(what) == "":
		return "the subject does not name a package and what now holds"
	case len([]rune(subject)) > 60:
		return "the subject has more than 60 characters"
	case strings.TrimSpace(body) == "":
		return "the body does not say why"
	case body != "" && !strings.HasPrefix(body, "\n"):
		return "no empty line is below the subject"
	}
	return ""
}

// TestCommits: the messages of commits since the last release keep the rules.
func TestCommits(t *testing.T) {
	git := func(args ...string) (string, bool) {
		out, err := exec.Command("git", append([]string{"-C", root}, args...)...).Output()
		return strings.TrimSpace(string(out)), err == nil
	}
	since, ok := git("describe", "--tags", "--abbrev=0", "--match=v*")
	if !ok {
		since = judged
	}
	log, ok := git("log", "--no-merges", "--format=%h%x00%B%x00%x00", since+"..HEAD")
	if !ok {
		t.Skip("no history of git, or not the whole")
	}
	for _, record := range strings.Split(log, "\x00\x00") {
		hash, message, found := strings.Cut(strings.TrimSpace(record), "\x00")
		if !found {
			continue
		}
		if wrong := checkCommit(message); wrong != "" {
			subject, _, _ := strings.Cut(message, "\n")
			t.Errorf("%s %q: %s", hash, subject, wrong)
		}
	}
}

func TestCommitRules(t *testing.T) {
	long := "fsm: " + strings.Repeat("x", 56)
	for message, want := range map[string]string{
		"fsm: a message ends once\n\nIt ended twice.":    "",
		"cmd/tidy, docs: two places\n\nWhy.\n\nAnd more": "",
		"a message ends once\n\nWhy.":                    "the subject does not name a package and what now holds",
		"fsm: \n\nWhy.":                                  "the subject does not name a package and what now holds",
		long + "\n\nWhy.":                                "the subject has more than 60 characters",
		"fsm: a message ends once":                       "the body does not say why",
		"fsm: a message ends once\nWhy.":                 "no empty line is below the subject",
	} {
		if got := checkCommit(message); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}
