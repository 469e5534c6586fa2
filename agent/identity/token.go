package identity

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxToken is longer than any file with a join token.
const maxToken = 4 << 10

// Token returns the join token from an argument, from a file, or from standard input if
// one of them is "-". A token on the command line is visible to all users of the
// machine and stays in the shell's history, so a file is better.
func Token(argument, file string, stdin io.Reader) (string, error) {
	switch {
	case argument != "" && file != "":
		return "", errors.New("there are two join tokens; give one as an argument or with --token-file, not both")
	case argument == "" && file == "":
		return "", errors.New("there is no join token; write it to a file and use --token-file FILE, or - to read it from standard input")
	case argument != "" && argument != "-":
		return argument, nil
	}
	from := stdin
	if file != "" && file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", err
		}
		defer f.Close()
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, maxToken))
	if err != nil {
		return "", fmt.Errorf("cannot read the join token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", errors.New("the file or standard input contains no join token; write the line that token create prints to it")
	}
	return token, nil
}
