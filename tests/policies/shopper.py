"""A policy that shops in WebShop by the rules of the scripted expert."""

from coevolve.envs.webshop import scripted_expert
from coevolve.policies.base import ScriptedPolicy


def shops(conversation):
    """What the scripted shopper says next: the last page with an empty basket begins its episode."""
    pages = [message.content for message in conversation.prompt if message.role == "user"]
    wishes = [scripted_expert.ParsedInstruction.from_page(page) for page in pages]
    first = next(i for i, wish in enumerate(wishes) if wish == wishes[-1] and "Instruction:" in pages[i])
    says = scripted_expert.scripted_expert(pages[first])
    text = next(says)
    for page in pages[first + 1 :]:
        text = says.send(page)
    return text


PLAYER = ScriptedPolicy(shops)
