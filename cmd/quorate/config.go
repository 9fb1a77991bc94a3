package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

const configUsage = `usage:
  quorate config check FILE                                              whether a node could be started with FILE alone
  quorate config show [--effective] [--config FILE] [--set KEY=VALUE ...]  the settings that are given, or all
`

// configCommand answers questions about settings without starting anything.
func configCommand(args []string, out io.Writer) error {
	if len(args) > 0 {
		switch args[0] {
		case "check":
			return configCheck(args[1:], out)
		case "show":
			return configShow(args[1:], out)
		}
	}
	return fmt.Errorf("config: expected check or show\n%s", configUsage)
}

// configCheck reads a file as a node would, without the environment. It reports every mistake in
// it, and what of it has no effect.
func configCheck(args []string, out io.Writer) error {
	if len(args) != 1 {
		return fmt.Errorf("config check: expected exactly one file\n%s", configUsage)
	}
	s := defaults()
	if err := s.readFile(args[0]); err != nil {
		return err
	}
	if err := s.validate(); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	for _, n := range s.notices {
		fmt.Fprintf(out, "%s: %s\n", args[0], n)
	}
	fmt.Fprintf(out, "%s: ok\n", args[0])
	return nil
}

// configShow prints settings as a file that can be used, each with where it comes from: those that
// are given in the file, the environment or flags, or all. It does not print secrets.
func configShow(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("quorate config show", flag.ContinueOnError)
	flags.SetOutput(out)
	file := flags.String("config", "", "`file` of settings")
	all := flags.Bool("effective", false, "all settings with their values, defaults included")
	var sets list
	flags.Var(&sets, "set", "a setting, `KEY=VALUE`; may be repeated")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("config show: unexpected argument %q", flags.Arg(0))
	}
	s, err := load(*file, sets)
	if err != nil {
		return err
	}
	s.each(*all, func(key string, g given) {
		line := strings.TrimRight(key+" = "+g.value, " ")
		if slices.Contains(secrets, key) && g.value != "" {
			line = "# " + key + " is set; its value is secret"
		}
		fmt.Fprintf(out, "%s\n    # %s\n", line, g.source)
	})
	for _, n := range s.notices {
		fmt.Fprintf(out, "# %s\n", n)
	}
	return nil
}

// each visits settings in the order of the table: those that are given, or all, without those of tests
// that are not given.
func (s *settings) each(all bool, visit func(key string, g given)) {
	for _, row := range table {
		if strings.HasSuffix(row.key, ".N") {
			for _, key := range slices.Sorted(maps.Keys(s.given)) {
				if strings.HasPrefix(key, strings.TrimSuffix(row.key, "N")) {
					visit(key, s.given[key])
				}
			}
			continue
		}
		g, ok := s.given[row.key]
		if !ok {
			g = given{row.fallback, "default"}
		}
		if ok || all && !slices.ContainsFunc(testRows, func(r setting) bool { return r.key == row.key }) {
			visit(row.key, g)
		}
	}
}

// effective returns all settings without secrets, as the HTTP API shows them.
func (s *settings) effective() map[string]string {
	all := map[string]string{}
	s.each(true, func(key string, g given) {
		if !slices.Contains(secrets, key) {
			all[key] = g.value
		}
	})
	return all
}

// readFile applies a file of settings, which others must not be able to read if there are secrets in
// it.
func (s *settings) readFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	var errs []error
	if err := s.read(f); err != nil {
		errs = append(errs, fmt.Errorf("%s: %w", path, err))
	}
	info, err := f.Stat()
	if err == nil {
		err = private(path, info.Mode(), s.secret != "")
	}
	return errors.Join(append(errs, err)...)
}
