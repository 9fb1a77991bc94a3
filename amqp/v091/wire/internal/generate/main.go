// Generate writes methods_gen.go of package wire from the machine-readable
// specification of AMQP 0-9-1 that ships with the amqp091-go module, in the
// version go.mod pins. It is run in the folder of package wire.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	module   = "github.com/rabbitmq/amqp091-go"
	specFile = "spec/amqp0-9-1.stripped.extended.xml"
	output   = "methods_gen.go"
)

func main() {
	source, err := generate()
	if err == nil {
		err = os.WriteFile(output, source, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

// generate returns the source of the generated file.
func generate() ([]byte, error) {
	dir, err := moduleDir()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, specFile))
	if err != nil {
		return nil, err
	}
	s, err := readSpec(text)
	if err != nil {
		return nil, err
	}
	return render(s)
}

// moduleDir returns where the module lies, and fetches it if it is not there.
func moduleDir() (string, error) {
	dir, err := goList()
	if err != nil || dir != "" {
		return dir, err
	}
	if out, err := exec.Command("go", "mod", "download", module).CombinedOutput(); err != nil {
		return "", fmt.Errorf("go mod download %s: %w: %s", module, err, out)
	}
	if dir, err = goList(); err == nil && dir == "" {
		err = fmt.Errorf("module %s is nowhere", module)
	}
	return dir, err
}

func goList() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return "", fmt.Errorf("go list %s: %w", module, err)
	}
	return strings.TrimSpace(string(out)), nil
}
