package pipeline

import (
	"crypto/sha256"
	"crypto/sha512"
	"errors"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
)

// scramHashes are the hashes of the SCRAM mechanisms that Kafka has.
var scramHashes = map[string]scram.HashGeneratorFcn{
	sarama.SASLTypeSCRAMSHA256: sha256.New,
	sarama.SASLTypeSCRAMSHA512: sha512.New,
}

// scramClient is sarama's conversation over xdg-go/scram, which sarama leaves
// to its user. One is made for each connection.
type scramClient struct {
	hash         scram.HashGeneratorFcn
	conversation *scram.ClientConversation
}

// Begin implements sarama.SCRAMClient.
func (c *scramClient) Begin(user, password, authzID string) error {
	client, err := c.hash.NewClient(user, password, authzID)
	if err != nil {
		// The library's error may quote what it was given.
		return errors.New("kafka sasl: user or password has characters that scram does not allow")
	}
	c.conversation = client.NewConversation()
	return nil
}

// Step implements sarama.SCRAMClient.
func (c *scramClient) Step(challenge string) (string, error) { return c.conversation.Step(challenge) }

// Done implements sarama.SCRAMClient.
func (c *scramClient) Done() bool { return c.conversation.Done() }
