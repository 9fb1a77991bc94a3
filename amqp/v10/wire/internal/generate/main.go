// Generate writes composites_gen.go of package wire from its table of the
// composite types of AMQP 1.0. It is run in the folder of package wire.
package main

import (
	"fmt"
	"os"
)

const output = "composites_gen.go"

func main() {
	source, err := render(composites)
	if err == nil {
		err = os.WriteFile(output, source, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}
