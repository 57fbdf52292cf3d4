"""A graph of LangGraph with a model of LangChain (pip install langgraph langchain-openai)."""

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


def solve(context):
    """Model and tools in turn, until the model only talks."""

    @tool
    def bash(command: str) -> str:
        """Execute a bash command."""
        return context.run(command).output

    model = ChatOpenAI(model=context.model, base_url=context.base_url, api_key=context.api_key).bind_tools([bash])

    def ask(state: MessagesState):
        context.step()
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode([bash]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    start = [SystemMessage("Work with the bash tool."), HumanMessage(context.instruction)]
    return graph.compile().invoke({"messages": start})["messages"][-1].content
