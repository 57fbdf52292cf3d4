"""What official clients make of the bytes of a streamed reply."""

import anthropic
import httpx2


def put_together(data, size):
    """What the official client makes of a stream that comes in pieces of `size` bytes."""

    def serve(request):
        pieces = (data[place : place + size] for place in range(0, len(data), size))
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=pieces)

    with (
        httpx2.Client(transport=httpx2.MockTransport(serve)) as http,
        anthropic.Anthropic(api_key="k", base_url="http://gateway", http_client=http) as client,
        client.messages.stream(model="policy", max_tokens=9, messages=[{"role": "user", "content": "x"}]) as events,
    ):
        final = events.get_final_message()
    return anthropic.types.Message.model_validate(final.to_dict())
