// Command kstatus judges objects by the library that Flux judges them by: it reads one in JSON a line from stdin, and
// answers each with a line that says what the library makes of it, or what is wrong.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	objects := bufio.NewReader(os.Stdin)
	for {
		text, err := objects.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		verdict, err := judge(text)
		if err != nil {
			verdict = fmt.Sprintf("%q", err)
		}
		fmt.Println(verdict)
	}
}

func judge(text []byte) (string, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(text); err != nil {
		return "", err
	}
	result, err := status.Compute(object)
	if err != nil {
		return "", err
	}
	return result.Status.String(), nil
}
